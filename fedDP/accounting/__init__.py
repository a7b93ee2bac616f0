"""Accounting: what a sequence of noised releases costs in (epsilon, delta).

Which accountant is sound for what:

==================================  ====================  ==================================
release                             "gdp"                 "rdp"
==================================  ====================  ==================================
full participation, any relation    exact                 upper bound
Poisson, zero-out or add/remove     refused               upper bound
Poisson, replace-one                refused               refused
fixed-size cohorts                  refused (later)       refused (later)
==================================  ====================  ==================================

Without a named accountant the exact one is used where it can be, the Rényi one otherwise. `epsilon` and `delta`
speak of events fixed in advance. Where a round's parameters depend on earlier outputs, admit rounds by a filter:
the sum of squares up to `gdp_squared_budget`, or `rdp_at` at one order up to `rdp_budget`.

This room knows numbers only; it imports neither torch nor a communication library.
"""

from fedDP.accounting.accountants import ACCOUNTANTS, AccountantName, accountant_name, delta, epsilon
from fedDP.accounting.calibration import (
    calibrate_cohort_size,
    calibrate_noise_multiplier,
    calibrate_rounds,
    calibrate_sampling_rate,
    calibrate_scale,
    smallest_noise_multiplier,
)
from fedDP.accounting.events import (
    NEIGHBORING_RELATIONS,
    FixedSize,
    FullParticipation,
    Gaussian,
    NeighboringRelation,
    Poisson,
    Sampling,
    event_from_dict,
    events_all_full,
    sampling_from_dict,
)
from fedDP.accounting.gdp import gdp_delta, gdp_epsilon, gdp_mu, gdp_squared_budget
from fedDP.accounting.rdp import ORDERS, rdp, rdp_at, rdp_budget, rdp_delta, rdp_epsilon
from fedDP.accounting.trust import TrustModel
from fedDP.accounting.units import (
    Guarantee,
    group_epsilon,
    group_guarantee,
    noise_in_words,
    noise_per_coordinate,
    parallel_guarantee,
    person_epsilon,
    sequential_guarantee,
)

__all__ = [
    "ACCOUNTANTS",
    "NEIGHBORING_RELATIONS",
    "ORDERS",
    "AccountantName",
    "FixedSize",
    "FullParticipation",
    "Gaussian",
    "Guarantee",
    "NeighboringRelation",
    "Poisson",
    "Sampling",
    "TrustModel",
    "accountant_name",
    "calibrate_cohort_size",
    "calibrate_noise_multiplier",
    "calibrate_rounds",
    "calibrate_sampling_rate",
    "calibrate_scale",
    "delta",
    "epsilon",
    "event_from_dict",
    "events_all_full",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
    "gdp_squared_budget",
    "group_epsilon",
    "group_guarantee",
    "noise_in_words",
    "noise_per_coordinate",
    "parallel_guarantee",
    "person_epsilon",
    "rdp",
    "rdp_at",
    "rdp_budget",
    "rdp_delta",
    "rdp_epsilon",
    "sampling_from_dict",
    "sequential_guarantee",
    "smallest_noise_multiplier",
]
