"""Flower strategies with client-level differential privacy."""

from fedDP.strategies.client_level_dp import ClientLevelDP, RoundResult
from fedDP.strategies.enrolment import Enrolment
from fedDP.strategies.inner import InnerStrategy
from fedDP.strategies.parts import FlatClipping, GaussianNoise

__all__ = ["ClientLevelDP", "Enrolment", "FlatClipping", "GaussianNoise", "InnerStrategy", "RoundResult"]
