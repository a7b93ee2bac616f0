"""The memory of one private round: 10,000 clients and a model of about a million parameters, on two Ray nodes.

Reports the peak resident memory of the driver, which must stay below 1 GB, and of the workers. Run it with
``python benchmarks/memory.py``; ``--rate 0.9`` samples nine clients in ten.
"""

from __future__ import annotations

import argparse
import json
import logging.handlers
import os
import re
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from fedDP.accounting import Gaussian, Poisson
from fedDP.budget import Budget, Ledger
from fedDP.privacy.keys import RootKey
from fedDP.scenario.build import block_size, build_model_and_task, local_training
from fedDP.scenario.federated_data import FederatedData, group_by_client
from fedDP.scenario.node import Node, make_client_app
from fedDP.scenario.schema import ClientSpec, DataSpec, ModelSpec, PrivacySpec, Scenario
from fedDP.simulation.ray_grid import RayGrid
from fedDP.strategies.client_level_dp import ClientLevelDP
from fedDP.strategies.messages import to_array_record
from fedDP.strategies.parts import FlatClipping, GaussianNoise
from fedDP.training.parameters import ParameterLayout, trainable_arrays

RESULTS = Path(__file__).resolve().parent / "results"

RECORDS, NUM_FEATURES, HIDDEN, NUM_CLASSES = 20, 64, (1000, 920), 10
NODES, BATCH_SIZE, NOISE_MULTIPLIER, CLIP_NORM, DELTA = 2, 10, 1.0, 1.0, 1e-6
DRIVER_LIMIT_MB = 1000.0


def make_data(num_clients: int) -> FederatedData:
    """Random records of `num_clients` clients at one site, with the classes of a linear rule."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((num_clients * RECORDS, NUM_FEATURES), dtype=np.float32)
    rule = rng.standard_normal((NUM_FEATURES, NUM_CLASSES), dtype=np.float32)
    return group_by_client(
        features,
        (features @ rule).argmax(axis=1),
        sites=np.full(len(features), "site"),
        clients=np.repeat([f"{client:07d}" for client in range(num_clients)], RECORDS),
        feature_names=tuple(f"x{column}" for column in range(NUM_FEATURES)),
        num_classes=NUM_CLASSES,
    )


def peak_mb(pid: int) -> float:
    """The peak resident memory of a process, its share of Ray's object store included, in 10**6 bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    if match is None:
        raise RuntimeError(f"/proc/{pid}/status has no VmHWM: peak memory can be read on Linux only.")
    return int(match[1]) * 1024 / 1e6


def measure(num_clients: int, rate: float) -> dict[str, Any]:
    """Runs one round and returns the peaks of all processes.

    Raises:
        RuntimeError: when a node failed, since its memory would then say nothing.
    """
    failures = logging.handlers.BufferingHandler(capacity=1000)
    logging.getLogger("fedDP.node").addHandler(failures)
    scenario = Scenario(
        data=DataSpec(path="synthetic.csv", target="label", task="multiclass", population_id="synthetic"),
        model=ModelSpec(name="mlp", hidden=HIDDEN),
        client=ClientSpec(batch_size=BATCH_SIZE),
        privacy=PrivacySpec(
            noise_multiplier=NOISE_MULTIPLIER, clip_norm=CLIP_NORM, sampling_rate=rate, target_epsilon=50.0, delta=DELTA
        ),
    )
    data = make_data(num_clients)
    model, _ = build_model_and_task(scenario, num_features=NUM_FEATURES, num_classes=NUM_CLASSES)
    arrays = trainable_arrays(model)
    loaded = peak_mb(os.getpid())
    with TemporaryDirectory(dir=RESULTS) as folder, RayGrid(make_client_app(Node(scenario, data)), NODES) as grid:
        ledger = Ledger.open(
            f"sqlite:///{folder}/ledger.db",
            budget=Budget(delta=DELTA, lifetime=50.0),
            unit="client",
            population="synthetic",
            plan=[Gaussian(NOISE_MULTIPLIER, sampling=Poisson(rate))],
            simulation=True,
        )
        strategy = ClientLevelDP(
            clipping=FlatClipping(CLIP_NORM),
            noise=GaussianNoise(NOISE_MULTIPLIER),
            sampling=Poisson(rate),
            ledger=ledger,
            training=local_training(scenario),
            root_key=RootKey.create(seed=0),
            block_size=block_size(scenario, num_parameters=sum(value.size for value in arrays.values())),
        )
        before = [peak_mb(pid) for pid in grid.worker_pids()]
        began = time.perf_counter()
        strategy.start(grid, to_array_record(arrays), num_rounds=1)
        seconds = time.perf_counter() - began
        workers = [peak_mb(pid) for pid in grid.worker_pids()]
    if failures.buffer:
        raise RuntimeError(f"A node failed: {failures.buffer[0].getMessage()}")
    return {
        "machine": f"{os.cpu_count()} CPU cores",
        "torch": torch.__version__,
        "clients": num_clients,
        "rate": rate,
        "parameters": ParameterLayout.of_arrays(arrays).size,
        "data_mb": data.features.nbytes / 1e6,
        "driver_before_mb": loaded,
        "driver_peak_mb": peak_mb(os.getpid()),
        "driver_limit_mb": DRIVER_LIMIT_MB,
        "workers_before_mb": before,
        "workers_peak_mb": workers,
        "round_seconds": seconds,
    }


def to_markdown(result: dict[str, Any]) -> str:
    """The peaks as a table."""
    workers = " + ".join(f"{value:.0f}" for value in result["workers_peak_mb"])
    return "\n".join(
        [
            "| process | before the round (MB) | peak (MB) | limit (MB) |",
            "| --- | --- | --- | --- |",
            f"| driver | {result['driver_before_mb']:.0f} | {result['driver_peak_mb']:.0f} "
            f"| {result['driver_limit_mb']:.0f} |",
            f"| workers, sum of {len(result['workers_peak_mb'])} | {sum(result['workers_before_mb']):.0f} "
            f"| {sum(result['workers_peak_mb']):.0f} ({workers}) | |",
            "",
            f"{result['clients']:,} clients at rate {result['rate']:g}, {result['parameters']:,} parameters, "
            f"{result['data_mb']:.0f} MB of records; one round took {result['round_seconds']:.0f} s on "
            f"{result['machine']} with torch {result['torch']}.",
        ]
    )


def main() -> None:
    """Measures, prints the table, writes it to ``benchmarks/results``, and fails when the driver takes too much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=0.1, help="Poisson sampling rate (default: 0.1)")
    parser.add_argument("--clients", type=int, default=10_000, help="enrolled clients (default: 10000)")
    options = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    result = measure(options.clients, options.rate)
    print(to_markdown(result))
    name = f"memory_{options.clients}_clients_rate_{options.rate:g}"
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    (RESULTS / f"{name}.md").write_text(to_markdown(result) + "\n")
    if result["driver_peak_mb"] > DRIVER_LIMIT_MB:
        raise SystemExit(f"The driver's peak of {result['driver_peak_mb']:.0f} MB is above {DRIVER_LIMIT_MB:.0f} MB.")


if __name__ == "__main__":
    main()
