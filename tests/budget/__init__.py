"""Tests of fedDP.budget: the calendar, the arithmetic of windows, and what a ledger promises through every accident."""
