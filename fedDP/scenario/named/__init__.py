"""Scenario files that ship with the package; ``feddp plan hospital`` finds them by name."""
