"""Accounting: what a sequence of noised releases costs in (epsilon, delta).

Which accountant is sound for what (`Event.supports`; anything else is refused, with the reason):

=====================================  =====  ===========  ==========================
release                                "gdp"  "rdp"        "pld"
=====================================  =====  ===========  ==========================
full participation, any relation       exact  upper bound  exact (it is "gdp")
Poisson, zero-out or add/remove        no     upper bound  upper bound, tight
Poisson, replace-one                   no     no           upper bound, tight
fixed-size cohorts, replace-one        no     upper bound  upper bound, nearly tight
fixed-size cohorts, other relations    no     no           no
=====================================  =====  ===========  ==========================

Without a named accountant it is "gdp" where nothing is sampled and "pld" otherwise. `epsilon` and `delta` speak of
events fixed in advance. Where a round's parameters depend on earlier outputs, admit rounds by a filter: the sum of
squares up to `gdp_squared_budget`, or `rdp_at` at one order up to `rdp_budget`.

A mechanism that is none of these brings its own event: see `fedDP.accounting.event`.

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
from fedDP.accounting.event import Event, event_from_dict, register_event
from fedDP.accounting.events import (
    NEIGHBORING_RELATIONS,
    FixedSize,
    FullParticipation,
    Gaussian,
    NeighboringRelation,
    Poisson,
    Sampling,
    events_all_full,
    sampling_from_dict,
)
from fedDP.accounting.gdp import gdp_delta, gdp_epsilon, gdp_mu, gdp_squared_budget
from fedDP.accounting.privacy_loss import DominatingPair, LossDistribution
from fedDP.accounting.rdp import ORDERS, rdp, rdp_at, rdp_budget, rdp_delta, rdp_epsilon
from fedDP.accounting.rdp_accountant import RdpAccountant
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
    "DominatingPair",
    "Event",
    "FixedSize",
    "FullParticipation",
    "Gaussian",
    "Guarantee",
    "LossDistribution",
    "NeighboringRelation",
    "Poisson",
    "RdpAccountant",
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
    "register_event",
    "sampling_from_dict",
    "sequential_guarantee",
    "smallest_noise_multiplier",
]
