"""The summary of a finished run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedDP.scenario.conduct import Outcome
from fedDP.training.parameters import model_sha256


def make_summary(
    outcome: Outcome,
    *,
    nodes: int,
    warnings: Sequence[dict[str, str]] = (),
    baseline: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What ``summary.json`` says.

    Args:
        outcome: the run.
        nodes: how many nodes trained.
        warnings: of the plan.
        baseline: the same training without privacy, where it was run.
    """
    stop = outcome.stop
    clients = outcome.plan.denominator * outcome.rounds_completed
    return {
        "status": outcome.status,
        "stop": stop
        and {
            "window": stop.window,
            "key": stop.key,
            "spent": stop.spent,
            "asked": stop.asked,
            "allowance": stop.allowance,
            "resumes": stop.resumes,
            "text": str(stop),
        },
        "rounds_completed": outcome.rounds_completed,
        "rounds_requested": outcome.plan.scenario.server.rounds,
        "metrics": outcome.metrics,
        "baseline": baseline,
        "privacy": outcome.privacy,
        "warnings": list(warnings),
        "model_sha256": model_sha256(outcome.arrays),
        "enrolled": outcome.enrolment.num_clients,
        "expected_cohort": outcome.plan.denominator,
        "noise_multiplier": outcome.plan.noise_multiplier,
        "noise_std": outcome.plan.noise_std,
        "clip_norm": outcome.plan.scenario.privacy.clip_norm,
        "budget": {
            window: getattr(outcome.plan.budget, window) if outcome.plan.budget else None
            for window in ("week", "year", "trailing", "lifetime")
        },
        "epsilon_accountant": "none" if outcome.plan.budget is None else outcome.plan.accountant,
        "nodes": nodes,
        "seconds": outcome.seconds,
        "clients_per_second": clients / max(outcome.seconds, 1e-9),
    }
