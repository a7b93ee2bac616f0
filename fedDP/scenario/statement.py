"""The privacy statement: what is promised, to whom, with which numbers, and what it does not cover."""

from __future__ import annotations

from typing import Any

from fedDP.accounting import Gaussian, Poisson, Sampling, accountant_name
from fedDP.budget import Ledger, WindowStatus
from fedDP.privacy.keys import RngKind
from fedDP.scenario.privacy_plan import PrivacyPlan

TRUST_MODEL = (
    "central: the server is trusted. It sees each node's un-noised sum; when a node has one sampled client, that is "
    "this client's clipped update. A node sees its own clients' data and who of them was sampled."
)
ADVERSARY = (
    "everyone who sees all released models, other sites included; not the server's operator, not a client's own node"
)
NOT_COVERED = (
    "enrolment and sizes: who is enrolled, where, and with how many records is public",
    "timing of rounds and replies",
    "the floating-point noise sampler: adds at most (1 + e^epsilon) * coordinates * rounds * 2^-53 to delta",
    "hyper-parameters tuned on the same data",
    "a private initial model",
    "loss of whole machines, assumed independent of the data",
)


def sampling_text(sampling: Sampling) -> dict[str, Any]:
    """The sampling assumption."""
    if isinstance(sampling, Poisson) and sampling.rate < 1.0:
        return {
            "kind": "poisson",
            "rate": sampling.rate,
            "assumption": "every client takes part independently with this probability; the cohort stays secret",
        }
    return {"kind": "all", "rate": 1.0, "assumption": "every client takes part in every round"}


def _sampling_of(plan: PrivacyPlan, events: list[Gaussian]) -> dict[str, Any]:
    """The sampling of everything that was charged, which may be several runs'."""
    texts = [sampling_text(event.sampling) for event in events] or [sampling_text(plan.sampling)]
    if all(text == texts[0] for text in texts):
        return texts[0]
    return {
        "kind": "mixed",
        "rate": max(text["rate"] for text in texts),
        "assumption": "several runs, each with its own sampling; the rate is the largest",
    }


def statements(
    plan: PrivacyPlan, ledger: Ledger | None, *, rng: RngKind, one_row_per_client: bool, scope: str
) -> list[dict[str, Any]]:
    """One client-level statement for each kind of window: the worst week, the worst year, and the lifetime.

    Args:
        plan: the resolved privacy.
        ledger: what was charged; None without privacy.
        rng: whether the noise can be repeated.
        one_row_per_client: whether each row of the table is a client.
        scope: which runs the ledger counts.
    """
    scenario = plan.scenario
    unit = scenario.scenario.unit
    not_covered = [*NOT_COVERED, f"a {unit} who is enrolled k times, or at k sites, counts as k clients"]
    if one_row_per_client:
        not_covered.append(f"one row = one client: a {unit} with several rows is protected for each row only")
    if rng == "seeded":
        not_covered.append("seeded randomness: every epsilon is nominal, whoever knows the seed can remove the noise")
    events = ledger.events() if ledger else []
    common: dict[str, Any] = {
        "level": "client",
        "unit": unit,
        "neighboring_relation": scenario.privacy.neighboring_relation,
        "trust_model": TRUST_MODEL,
        "adversary": ADVERSARY,
        "sampling": _sampling_of(plan, events),
        # Of the spent epsilons, which are the ledger's: exact where nothing is sampled, whatever was asked for.
        "accountant": accountant_name(events or [plan.event()]) if ledger else "none",
        "delta": scenario.privacy.delta,
        "clock": scenario.budget.clock,
        "scope": scope,
        "mode": ledger.definition.mode if ledger else plan.mode,
        "mode_reason": ledger.definition.mode_reason if ledger else plan.mode_reason,
        "rng": rng,
        "not_covered": not_covered,
    }
    if ledger is None:
        none = {"window": "lifetime", "key": "lifetime", "epsilon": "inf", "epsilon_certified": "inf", "charges": 0}
        return [{**common, **none}]
    found = []
    for window in ("week", "year", "lifetime"):
        of_kind = [status for status in ledger.windows() if status.window == window]
        if of_kind:
            found.append({**common, **_of_windows(of_kind, ledger)})
    return found


def _of_windows(of_kind: list[WindowStatus], ledger: Ledger) -> dict[str, Any]:
    """The numbers of a kind of window: what the worst one has spent, and what holds for all of them."""
    status = max(of_kind, key=lambda status: status.spent_epsilon)
    # Where allowances accumulate, or a plan gives them, they differ from week to week.
    certified = [value for value in map(ledger.certified, of_kind) if value is not None]
    return {
        "window": status.window,
        "key": status.key,
        "epsilon": status.spent_epsilon,
        "epsilon_certified": max(certified) if len(certified) == len(of_kind) else "inf",
        "spent_fraction": status.spent_fraction,
        "charges": status.charges,
    }
