"""Flower strategies with client-level differential privacy."""

import os

# Before Flower is imported: nothing that we start reports home.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

from fedDP.strategies.client_level_dp import ClientLevelDP, RoundResult
from fedDP.strategies.enrolment import Enrolment
from fedDP.strategies.inner import InnerStrategy
from fedDP.strategies.parts import FlatClipping, GaussianNoise

__all__ = ["ClientLevelDP", "Enrolment", "FlatClipping", "GaussianNoise", "InnerStrategy", "RoundResult"]
