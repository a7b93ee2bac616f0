"""Tests of fedDP.privacy: sensitivity in exact integers, statistics that also reject wrong noise, known answers."""
