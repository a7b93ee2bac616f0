"""Tests of fedDP.accounting: closed forms, slow oracles, golden values, laws."""
