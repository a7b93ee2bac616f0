"""Which rule admits a ledger's charges, and why that one."""

from __future__ import annotations

from collections.abc import Sequence

from fedDP.accounting import Gaussian, events_all_full
from fedDP.budget.committed_plan import PlannedRelease
from fedDP.budget.policy import Budget, Mode
from fedDP.errors import InvalidValueError, UnsupportedError


def choose_mode(
    mode: str,
    plan: Sequence[Gaussian | PlannedRelease] | None,
    *,
    budget: Budget | None = None,
    exclusive: bool = False,
) -> Mode:
    """The ledger's mode; see `explain_mode`."""
    return explain_mode(mode, plan, budget=budget, exclusive=exclusive)[0]


def explain_mode(
    mode: str,
    plan: Sequence[Gaussian | PlannedRelease] | None,
    *,
    budget: Budget | None = None,
    exclusive: bool = False,
) -> tuple[Mode, str]:
    """The ledger's mode and the reason for it in words.

    "auto" is gaussian when a plan shows that nothing is sampled: exact, and later rounds may be chosen freely. Else it
    is plan when the ledger serves one run alone whose releases all have their week and nothing is reserved: the
    tightest account, since nothing may change. Else it is renyi.

    Args:
        mode: "gaussian", "renyi", "plan" or "auto".
        plan: the releases that are expected, which must not depend on data.
        budget: the ledger's budget, whose reserve a committed plan does not need.
        exclusive: whether the ledger serves the plan's run alone.

    Raises:
        UnsupportedError: gaussian mode for a plan with sampled rounds.
        InvalidValueError: for an unknown mode, or plan mode without a plan.
    """
    releases = [PlannedRelease.of(each) for each in plan or ()]
    unsampled = bool(releases) and events_all_full(release.event for release in releases)
    if mode == "auto":
        reserved = budget is not None and budget.reserve_evaluation > 0.0
        return _pick(releases, unsampled, reserved=reserved, alone=exclusive)
    if mode == "gaussian":
        if releases and not unsampled:
            raise UnsupportedError('budget.mode="gaussian" cannot account for sampled rounds: use "renyi" or "auto".')
        return "gaussian", "gaussian, as asked"
    if mode == "renyi":
        return "renyi", "renyi, as asked"
    if mode == "plan":
        if not releases:
            raise InvalidValueError("plan", plan, "the schedule to commit to", 'Give one, or use mode="renyi".')
        return "plan", "plan, as asked"
    raise InvalidValueError("mode", mode, 'one of "gaussian", "renyi", "plan", "auto"')


def _pick(releases: Sequence[PlannedRelease], unsampled: bool, *, reserved: bool, alone: bool) -> tuple[Mode, str]:
    if not releases:
        return "renyi", "auto picked renyi: no plan was given"
    if unsampled:
        return "gaussian", "auto picked gaussian: no round is sampled, so that sums of squares are exact"
    if not alone:
        return "renyi", "auto picked renyi: sampled rounds, and other runs may follow"
    if any(release.week is None for release in releases):
        return "renyi", "auto picked renyi: sampled rounds, planned without their weeks"
    if reserved:
        return "renyi", "auto picked renyi: sampled rounds, a share of the budget is reserved for evaluation"
    return "plan", "auto picked plan: sampled rounds, all with their weeks, ledger of one run alone"
