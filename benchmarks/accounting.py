"""How long accounting takes, beside dp-accounting where it does the same.

Three questions: epsilon after each of 2,000 rounds that all differ; a plan of 52 weeks with 10 rounds each, by week and
by year; and one epsilon of 20 kinds of rounds, 100 of each, by privacy loss distributions. Times are CPU seconds of one
process. Run it with ``python benchmarks/accounting.py``; ``--quick`` takes fewer rounds and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant as PeerRdpAccountant

from fedDP.accounting import Gaussian, Poisson, RdpAccountant, epsilon

RESULTS = Path(__file__).resolve().parent / "results"
DELTA = 1e-5
PEER_ROUNDS = 50  # its time grows in proportion; more would take minutes


def seconds(work: Callable[[], float]) -> tuple[float, float]:
    """CPU seconds, and what came out."""
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def different_rounds(count: int) -> list[tuple[float, float]]:
    """Rates and noise multipliers of rounds that all differ."""
    rates = np.random.default_rng(0).uniform(0.005, 0.02, count)
    return [(float(rate), 1.5 - 0.6 * index / count) for index, rate in enumerate(rates)]


def after_each_round(rounds: list[tuple[float, float]]) -> float:
    accountant, found = RdpAccountant(), 0.0
    for rate, noise in rounds:
        accountant.compose(Gaussian(noise, sampling=Poisson(rate)))
        found = accountant.epsilon(DELTA)
    return found


def peer_after_each_round(rounds: list[tuple[float, float]]) -> float:
    accountant, found = PeerRdpAccountant(), 0.0
    for rate, noise in rounds:
        accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)))
        found = float(accountant.get_epsilon(DELTA))
    return found


def planned_year() -> float:
    """Epsilon of each of 52 weeks, and of the year after each of them."""
    found = 0.0
    for week in range(1, 53):
        epsilon([Gaussian(3.8, sampling=Poisson(0.02), count=10)], 1e-6, "pld")
        found = epsilon([Gaussian(3.8, sampling=Poisson(0.02), count=10 * week)], 1e-6, "pld")
    return found


def groups(count: int) -> list[tuple[float, float]]:
    return [(0.005 + 0.0005 * index, 1.5 - 0.03 * index) for index in range(count)]


def by_losses(kinds: list[tuple[float, float]]) -> float:
    return epsilon([Gaussian(noise, sampling=Poisson(rate), count=100) for rate, noise in kinds], DELTA, "pld")


def peer_by_losses(kinds: list[tuple[float, float]]) -> float:
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    for rate, noise in kinds:
        accountant.compose(SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), 100))
    return float(accountant.get_epsilon(DELTA))


def measure(*, quick: bool) -> list[dict[str, Any]]:
    """One row a question."""
    by_losses(groups(1))  # imports, and the tables that are made once
    rounds = different_rounds(200 if quick else 2000)
    kinds = groups(4 if quick else 20)
    own, found = seconds(lambda: after_each_round(rounds))
    few = rounds[:10] if quick else rounds[:PEER_ROUNDS]
    peer, _ = seconds(lambda: peer_after_each_round(few))
    year, found_year = seconds(planned_year)
    losses, found_losses = seconds(lambda: by_losses(kinds))
    peer_losses, peer_found = seconds(lambda: peer_by_losses(kinds))
    return [
        {
            "what": f"epsilon after each of {len(rounds)} different rounds (Rényi)",
            "epsilon": found,
            "seconds": own,
            "peer_seconds": peer * len(rounds) / len(few),
            "peer": f"extrapolated from {len(few)}",
        },
        {
            "what": "52 weeks x 10 rounds, each week and each year to date (privacy loss)",
            "epsilon": found_year,
            "seconds": year,
            "peer_seconds": None,
            "peer": "",
        },
        {
            "what": f"{len(kinds)} kinds x 100 rounds (privacy loss)",
            "epsilon": found_losses,
            "seconds": losses,
            "peer_seconds": peer_losses,
            "peer": f"epsilon {peer_found:.6f}",
        },
    ]


def to_markdown(rows: list[dict[str, Any]]) -> str:
    lines = ["| what | epsilon | fedDP (CPU s) | dp-accounting (CPU s) | |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        peer = "" if row["peer_seconds"] is None else f"{row['peer_seconds']:.2f}"
        lines.append(f"| {row['what']} | {row['epsilon']:.6f} | {row['seconds']:.2f} | {peer} | {row['peer']} |")
    return "\n".join(lines)


def main() -> None:
    """Measures, prints the table, and writes it to ``benchmarks/results`` unless ``--quick``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds; nothing is written")
    options = parser.parse_args()
    rows = measure(quick=options.quick)
    print(to_markdown(rows))
    if not options.quick:
        RESULTS.mkdir(exist_ok=True)
        machine = {"machine": f"{os.cpu_count()} CPU cores", "results": rows}
        (RESULTS / "accounting.json").write_text(json.dumps(machine, indent=2) + "\n")
        (RESULTS / "accounting.md").write_text(to_markdown(rows) + "\n")


if __name__ == "__main__":
    main()
