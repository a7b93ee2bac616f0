"""The same private training in fedDP and in Flower's own simulation, in turn on one machine.

1000 clients of 60 records, an MLP 64-128-10, one epoch of SGD in batches of 10, about 100 clients a round, clipping to
a fixed norm and Gaussian noise; two workers of one thread each. Every measurement is a process of its own, the sides
alternate, and a round's time is taken inside the strategy, from the end of one round to the end of the next.

Run it with ``python benchmarks/against_flower.py``; ``--quick`` only shows that it works.
"""

from __future__ import annotations

import argparse
import json
import logging.handlers
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Context, Message, MetricRecord
    from torch import nn

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"

NUM_CLIENTS, RECORDS, COHORT, WORKERS = 1000, 60, 100, 2
NUM_FEATURES, HIDDEN, NUM_CLASSES = 64, 128, 10
BATCH_SIZE, LEARNING_RATE = 10, 0.1
CLIP_NORM, NOISE_MULTIPLIER, DELTA = 1.0, 1.0, 1e-5
TARGET_RATIO = 15.0


@cache
def make_data() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Features (N * 60, 64) and the classes of a random linear rule, client after client."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((NUM_CLIENTS * RECORDS, NUM_FEATURES), dtype=np.float32)
    rule = rng.standard_normal((NUM_FEATURES, NUM_CLASSES), dtype=np.float32)
    return features, (features @ rule).argmax(axis=1)


def fed_dp_rounds(num_rounds: int) -> list[float]:
    """When each round of fedDP ended, in seconds: two Ray nodes, Poisson sampling, a ledger on the disk."""
    from fedDP.accounting import Gaussian, Poisson
    from fedDP.budget import Budget, Ledger
    from fedDP.privacy.keys import RootKey
    from fedDP.scenario.build import build_model_and_task, local_training
    from fedDP.scenario.federated_data import group_by_client
    from fedDP.scenario.node import Node, make_client_app
    from fedDP.scenario.schema import ClientSpec, DataSpec, ModelSpec, PrivacySpec, Scenario, ServerSpec
    from fedDP.simulation.ray_grid import RayGrid
    from fedDP.strategies.client_level_dp import ClientLevelDP
    from fedDP.strategies.messages import to_array_record
    from fedDP.strategies.parts import FlatClipping, GaussianNoise
    from fedDP.training.parameters import trainable_arrays

    failures = logging.handlers.BufferingHandler(capacity=1000)
    logging.getLogger("fedDP.node").addHandler(failures)
    features, targets = make_data()
    rate = COHORT / NUM_CLIENTS
    scenario = Scenario(
        data=DataSpec(path="synthetic.csv", target="label", task="multiclass", population_id="synthetic"),
        model=ModelSpec(name="mlp", hidden=(HIDDEN,)),
        client=ClientSpec(batch_size=BATCH_SIZE, learning_rate=LEARNING_RATE),
        server=ServerSpec(rounds=num_rounds),
        privacy=PrivacySpec(noise_multiplier=NOISE_MULTIPLIER, clip_norm=CLIP_NORM, sampling_rate=rate, delta=DELTA),
    )
    data = group_by_client(
        features,
        targets,
        sites=np.full(len(features), "site"),
        clients=np.repeat([f"{client:04d}" for client in range(NUM_CLIENTS)], RECORDS),
        feature_names=tuple(f"x{column}" for column in range(NUM_FEATURES)),
        num_classes=NUM_CLASSES,
    )
    model, _ = build_model_and_task(scenario, num_features=NUM_FEATURES, num_classes=NUM_CLASSES)
    ends: list[float] = []
    with TemporaryDirectory(dir=RESULTS) as folder, RayGrid(make_client_app(Node(scenario, data)), WORKERS) as grid:
        ledger = Ledger.open(
            f"sqlite:///{folder}/ledger.db",
            budget=Budget(delta=DELTA, lifetime=100.0),
            unit="client",
            population="synthetic",
            plan=[Gaussian(NOISE_MULTIPLIER, sampling=Poisson(rate), count=num_rounds)],
            simulation=True,
        )
        strategy = ClientLevelDP(
            clipping=FlatClipping(CLIP_NORM),
            noise=GaussianNoise(NOISE_MULTIPLIER),
            sampling=Poisson(rate),
            ledger=ledger,
            training=local_training(scenario),
            root_key=RootKey.create(seed=0),
        )
        strategy.start(
            grid,
            to_array_record(trainable_arrays(model)),
            num_rounds=num_rounds,
            on_round=lambda _: ends.append(time.perf_counter()),
        )
    if failures.buffer:  # a client that fails costs no time and counts as zero
        raise RuntimeError(f"A node failed: {failures.buffer[0].getMessage()}")
    return ends


def make_torch_model() -> nn.Module:
    """The MLP 64-128-10."""
    from torch import nn

    return nn.Sequential(nn.Linear(NUM_FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, NUM_CLASSES))


def flower_train(message: Message, context: Context) -> Message:
    """A Flower client: a plain PyTorch loop."""
    import torch
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from torch.nn.functional import cross_entropy

    torch.set_num_threads(1)
    first = int(context.node_config["partition-id"]) * RECORDS
    features, targets = (torch.from_numpy(array[first : first + RECORDS]) for array in make_data())
    model = make_torch_model()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for batch in torch.randperm(RECORDS).reshape(-1, BATCH_SIZE):
        optimizer.zero_grad()
        cross_entropy(model(features[batch]), targets[batch]).backward()  # type: ignore[no-untyped-call] # torch's
        optimizer.step()
    metrics = MetricRecord({"num-examples": RECORDS})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


def flower_rounds(num_rounds: int) -> list[float]:
    """When each round of Flower's simulation ended, in seconds: its own DP strategy and client mod, two Ray actors."""
    from flwr.app import ArrayRecord
    from flwr.clientapp import ClientApp
    from flwr.clientapp.mod import fixedclipping_mod
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    ends: list[float] = []

    class Timed(DifferentialPrivacyClientSideFixedClipping):
        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            received = list(replies)
            released = super().aggregate_train(server_round, received)
            if len(received) != COHORT or released[0] is None:
                raise RuntimeError(f"Round {server_round}: {len(received)} replies of {COHORT}, or no model.")
            ends.append(time.perf_counter())
            return released

    client_app = ClientApp(mods=[fixedclipping_mod])
    client_app.train()(flower_train)
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        inner = FedAvg(fraction_train=COHORT / NUM_CLIENTS, fraction_evaluate=0.0, min_available_nodes=NUM_CLIENTS)
        strategy = Timed(inner, NOISE_MULTIPLIER, CLIP_NORM, COHORT)
        strategy.start(grid, ArrayRecord(make_torch_model().state_dict()), num_rounds=num_rounds)

    run_simulation(
        server_app,
        client_app,
        num_supernodes=NUM_CLIENTS,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
            "init_args": {"num_cpus": WORKERS, "log_to_driver": False, "include_dashboard": False},
        },
    )
    return ends


SIDES: dict[str, Callable[[int], list[float]]] = {"fedDP": fed_dp_rounds, "Flower simulation": flower_rounds}


def measure_here(side: str, num_rounds: int, out: str) -> None:
    """Runs one side in this process: a warm-up round, then `num_rounds` rounds, whose seconds go to the file `out`."""
    ends = SIDES[side](1 + num_rounds)
    if len(ends) != 1 + num_rounds:
        raise RuntimeError(f"{side}: {len(ends)} rounds ended; expected {1 + num_rounds}.")
    Path(out).write_text(json.dumps(np.diff(ends).tolist()))


def measure(side: str, num_rounds: int) -> list[float]:
    """The seconds of each timed round of a side, in a fresh process."""
    # The module is imported there, not run: Ray's workers can then load the client by its name.
    with TemporaryDirectory() as folder:
        out = Path(folder) / "seconds.json"
        code = f"from benchmarks.against_flower import measure_here as m; m({side!r}, {num_rounds}, {str(out)!r})"
        settings = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        run = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, **settings, "PYTHONPATH": str(ROOT), "FLWR_HOME": folder},
            capture_output=True,
            text=True,
        )
        if run.returncode or not out.exists():
            raise RuntimeError(f"{side} failed with exit status {run.returncode}:\n{run.stdout}\n{run.stderr}")
        seconds: list[float] = json.loads(out.read_text())
        return seconds


def summarise(seconds: dict[str, list[list[float]]]) -> dict[str, Any]:
    """Medians, ranges and ratios of `seconds[side][repetition][round]`, in milliseconds per client."""
    sides: dict[str, Any] = {}
    for side, repetitions in seconds.items():
        each = [1000.0 * value / COHORT for repetition in repetitions for value in repetition]
        medians = [1000.0 * statistics.median(repetition) / COHORT for repetition in repetitions]
        low, high = np.percentile(each, [25, 75]).tolist()
        sides[side] = {"median": statistics.median(each), "quartiles": [low, high], "by_repetition": medians}
    ours, theirs = (sides[side] for side in SIDES)
    pairs = [b / a for a, b in zip(ours["by_repetition"], theirs["by_repetition"], strict=True)]
    return {
        "machine": f"{os.cpu_count()} CPU cores",
        "versions": {name: version(name) for name in ("flwr", "ray", "torch")},
        "milliseconds_per_client": sides,
        "ratio": theirs["median"] / ours["median"],
        "ratio_by_repetition": pairs,
        "target_ratio": TARGET_RATIO,
        "round_seconds": seconds,
    }


def to_markdown(summary: dict[str, Any]) -> str:
    """The summary as a table."""
    lines = ["| side | ms per client (median) | quartiles | median of each repetition |", "| --- | --- | --- | --- |"]
    for side, values in summary["milliseconds_per_client"].items():
        low, high = values["quartiles"]
        each = ", ".join(f"{value:.2f}" for value in values["by_repetition"])
        lines.append(f"| {side} | {values['median']:.2f} | {low:.2f} to {high:.2f} | {each} |")
    pairs = ", ".join(f"{value:.1f}" for value in summary["ratio_by_repetition"])
    rounds = len(summary["round_seconds"]["fedDP"][0])
    versions = ", ".join(f"{name} {number}" for name, number in summary["versions"].items())
    return "\n".join(
        [
            *lines,
            "",
            f"Ratio: **{summary['ratio']:.1f}** (by repetition {pairs}; target {summary['target_ratio']:g}).",
            "",
            f"{len(summary['ratio_by_repetition'])} repetitions of {rounds} timed rounds a side, in turn; "
            f"{summary['machine']}; {versions}.",
        ]
    )


def main() -> None:
    """Measures both sides in turn, prints the table, and writes it to ``benchmarks/results``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one repetition of 2 rounds, written nowhere")
    parser.add_argument("--rounds", type=int, default=8, help="timed rounds of a repetition (default: 8)")
    parser.add_argument("--repetitions", type=int, default=3, help="measurements of each side (default: 3)")
    options = parser.parse_args()
    rounds, repetitions = (2, 1) if options.quick else (options.rounds, options.repetitions)
    RESULTS.mkdir(exist_ok=True)
    seconds: dict[str, list[list[float]]] = {side: [] for side in SIDES}
    for repetition in range(repetitions):
        for side in SIDES:
            seconds[side].append(measure(side, rounds))
            typical = 1000.0 * statistics.median(seconds[side][-1]) / COHORT
            print(f"{repetition + 1}/{repetitions} {side}: {typical:.2f} ms per client", file=sys.stderr)
    summary = summarise(seconds)
    print(to_markdown(summary))
    if not options.quick:
        (RESULTS / "against_flower.json").write_text(json.dumps(summary, indent=2) + "\n")
        (RESULTS / "against_flower.md").write_text(to_markdown(summary) + "\n")


if __name__ == "__main__":
    main()
