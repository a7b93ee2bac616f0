"""A ledger that grows: how long it takes to open, to charge, and to verify, and what memory it needs.

Builds ledgers of several sizes in a temporary folder, rows chained as the ledger chains them but inserted at once, and
measures each in a process of its own. Run it with ``python benchmarks/ledger.py``; ``--quick`` takes small sizes and
writes nothing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import insert

from fedDP.accounting import Gaussian, Poisson
from fedDP.budget import Budget, Ledger, SimulatedClock, verify
from fedDP.budget.anchors import Anchor, AnchorFile
from fedDP.budget.database import Database
from fedDP.budget.records import canonical_json, chained_row, entries

RESULTS = Path(__file__).resolve().parent / "results"

SIZES, QUICK_SIZES = (1_000, 10_000, 100_000), (100, 1_000)
ROUNDS_PER_WEEK, ROUNDS_PER_RUN, CHARGES = 500, 1_000, 200
BUDGET = Budget(delta=1e-6, week="even", year=1.0, lifetime=4.0)
EVENT = Gaussian(300.0, sampling=Poisson(0.01))
IN_MEMORY = Path("/dev/shm")


def open_ledger(path: Path) -> Ledger:
    clock = SimulatedClock(rounds_per_week=ROUNDS_PER_WEEK)
    return Ledger.open(str(path), budget=BUDGET, unit="client", plan=[EVENT], clock=clock)


def charged_rows(ledger: Ledger, num_charges: int) -> Iterator[dict[str, Any]]:
    """The rows of so many rounds that were charged and released."""
    clock = SimulatedClock(rounds_per_week=ROUNDS_PER_WEEK)
    relation = ledger.definition.neighboring_relation
    costs = {name: str(rule.cost(EVENT, relation)) for name, rule in ledger.definition.rules.items()}
    charge: dict[str, Any] = {
        "kind": "charge",
        "purpose": "train",
        "attempt": 1,
        "event": canonical_json(EVENT.to_dict()),
        "costs": canonical_json(costs),
        "clip_norm": 1.0,
        "denominator": 100.0,
        "max_weight": 1.0,
        "rng": "csprng",
        "nonce": "0" * 16,
    }
    seq, digest = ledger.head
    for round in range(1, num_charges + 1):
        run_id = f"run-{round // ROUNDS_PER_RUN}"
        for values in ({**charge, "run_id": run_id, "round": round}, {"kind": "released", "charge_seq": seq + 1}):
            row = chained_row(seq + 1, digest, clock.now(round), **values)
            seq, digest = row["seq"], row["hash"]
            yield row


def build(path: Path, num_charges: int) -> None:
    """A ledger of so many charges."""
    ledger = open_ledger(path)
    rows = list(charged_rows(ledger, num_charges))
    with Database(str(path)).transaction() as connection:
        connection.execute(insert(entries), rows)
    file = AnchorFile(path.with_name(path.name + ".anchor"))
    file.prepare(Anchor(ledger_id=ledger.definition.ledger_id, seq=rows[-1]["seq"], hash=rows[-1]["hash"]))
    file.publish()


def measure(path: Path, num_charges: int) -> dict[str, Any]:
    """Opens, charges and verifies the ledger."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, cpu = time.perf_counter(), time.process_time()
    ledger = open_ledger(path)
    opened, cpu = time.perf_counter() - began, time.process_time() - cpu
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    seconds: list[float] = []
    for index in range(CHARGES):
        began = time.perf_counter()
        grant = ledger.authorise(
            EVENT, run_id="more", round=num_charges + 1 + index, purpose="train", clip_norm=1.0, denominator=100.0
        )
        seconds.append(time.perf_counter() - began)
        ledger.mark_released(grant)
    began = time.perf_counter()
    verified = verify(str(path))
    return {
        "charges": num_charges,
        "rows": verified.rows,
        "megabytes": path.stat().st_size / 1e6,
        "open_seconds": opened,
        "open_cpu_seconds": cpu,
        "memory_mb": memory * 1024 / 1e6,
        "authorise_ms": 1e3 * statistics.median(seconds),
        "verify_seconds": time.perf_counter() - began,
    }


def measure_size(num_charges: int) -> dict[str, Any]:
    """The measurements of one size; charging also where syncs cost nothing."""
    context = multiprocessing.get_context("spawn")
    found: list[dict[str, Any]] = []
    for place in (Path.cwd(), IN_MEMORY):
        with TemporaryDirectory(dir=place) as folder, context.Pool(1) as pool:
            path = Path(folder) / "ledger.db"
            pool.apply(build, (path, num_charges))
            # A process of its own: what building needed must not count.
            with context.Pool(1) as fresh:
                found.append(fresh.apply(measure, (path, num_charges)))
    disk, memory = found
    return {**disk, "authorise_without_sync_ms": memory["authorise_ms"]}


def to_markdown(results: list[dict[str, Any]]) -> str:
    """The measurements as a table."""
    lines = [
        "| charges | rows | file (MB) | open (s) | of it CPU (s) | memory (MB) | authorise (ms) | without sync (ms) "
        "| verify (s) |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in results:
        lines.append(
            f"| {each['charges']:,} | {each['rows']:,} | {each['megabytes']:.1f} | {each['open_seconds']:.2f} "
            f"| {each['open_cpu_seconds']:.2f} | {each['memory_mb']:.0f} | {each['authorise_ms']:.1f} "
            f"| {each['authorise_without_sync_ms']:.1f} | {each['verify_seconds']:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measures, prints the table, and writes it to ``benchmarks/results`` unless ``--quick``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small ledgers; nothing is written")
    options = parser.parse_args()
    results = [measure_size(size) for size in (QUICK_SIZES if options.quick else SIZES)]
    print(to_markdown(results))
    if not options.quick:
        RESULTS.mkdir(exist_ok=True)
        machine = {"machine": f"{os.cpu_count()} CPU cores", "results": results}
        (RESULTS / "ledger.json").write_text(json.dumps(machine, indent=2) + "\n")
        (RESULTS / "ledger.md").write_text(to_markdown(results) + "\n")


if __name__ == "__main__":
    main()
