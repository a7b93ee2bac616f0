"""A grid of Ray actors: one a node, on this machine or a cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# Before Ray is imported: nothing that we start reports home, and Ray can stall under `uv run`.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from ray.exceptions import RayActorError, RayError

from fedDP.errors import FedDPError
from fedDP.simulation.base_grid import SimulationGrid, error_reply, node_context
from fedDP.strategies.messages import assign_message_id, with_metadata

log = logging.getLogger("fedDP.node")

_START_SECONDS = 120.0
_RESTART_SECONDS = 60.0
_POLL_SECONDS = 0.2
_TRIES = 3  # a message that has ended so many workers is given up

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class _Worker:
    """The actor: runs the ClientApp of one node in a process of its own."""

    def __init__(self) -> None:
        self._client_app: ClientApp | None = None
        self._records: list[logging.LogRecord] = []
        logger = logging.getLogger("fedDP.node")
        logger.handlers[:] = [_ListHandler(self._records)]
        logger.propagate = False

    def set_up(self, client_app: ClientApp, node_id: int, num_nodes: int) -> int:
        """Becomes a node, at the start and again after a restart; returns the process id."""
        self._client_app = client_app
        self._context = node_context(node_id, num_nodes)
        return os.getpid()

    def handle(
        self, message: Message, names: list[str], *arrays: ArrayRecord
    ) -> tuple[Message, list[tuple[int, str]]] | None:
        """Runs a message whose array records come beside it; returns the reply and what was logged.

        None says that Ray started this process in the place of one that died, and that it was not set up since.
        """
        if self._client_app is None:
            return None
        self._records.clear()
        for name, record in zip(names, arrays, strict=True):
            message.content[name] = record
        try:
            reply = self._client_app(message, self._context)
        except Exception as error:
            logging.getLogger("fedDP.node").exception("Node %d failed.", self._context.node_id)
            reply = error_reply(message, f"{type(error).__name__}: {error}")
        formatter = logging.Formatter("%(message)s")
        return reply, [(record.levelno, formatter.format(record)) for record in self._records]


class _ListHandler(logging.Handler):
    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__()
        self._list = records

    def emit(self, record: logging.LogRecord) -> None:
        self._list.append(record)


@dataclass
class _Flight:
    """A message under way at a node."""

    node_id: int
    message: Message
    deadline: float | None
    tries: int = 1


class RayGrid(SimulationGrid):
    """Runs every node as a Ray actor.

    The ClientApp, with the data it holds, and each round's model are put once into the object store, where actors on
    one machine read them without a copy. An actor that dies is restarted and its message sent again; one that hangs is
    ended and restarted. The same messages give the same replies on any number of nodes.

    Args:
        client_app: what every node runs; it must pickle.
        num_nodes: number of actors. Each takes an equal part of the CPUs, so more nodes than CPUs start too.
        address: of a running cluster; None starts Ray on this machine and ends it on `close`.
        threads: threads a node computes with.

    Raises:
        FedDPError: when Ray or an actor does not start.
    """

    def __init__(
        self, client_app: ClientApp, num_nodes: int = 2, *, address: str | None = None, threads: int = 1
    ) -> None:
        super().__init__(num_nodes)
        self._actors: dict[int, Any] = {}
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            _start_ray(address)
        try:
            self._start_actors(client_app, threads)
        except BaseException:
            self.close()
            raise

    def _start_actors(self, client_app: ClientApp, threads: int) -> None:
        # Not a constructor argument: the grid keeps it for as long as an actor may be started again.
        self._stored_app = ray.put(client_app)
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        cpus = resources.get("CPU", 1.0)
        share = min(float(threads), int(1000 * cpus / self._num_nodes) / 1000)
        worker: Any = ray.remote(_Worker)
        self._actors = {
            node_id: worker.options(
                num_cpus=share,
                max_restarts=-1,
                runtime_env={"env_vars": dict.fromkeys(_THREAD_VARIABLES, str(threads))},
            ).remote()
            for node_id in self.get_node_ids()
        }
        pending = [self._set_up(node_id) for node_id in self._actors]
        try:
            ray.get(pending, timeout=_START_SECONDS)
        except RayError as error:
            raise FedDPError(
                f"The {self._num_nodes} Ray workers did not start within {_START_SECONDS:g} s ({error}). "
                "Is another run using the CPUs of this Ray cluster?"
            ) from error

    def _set_up(self, node_id: int) -> Any:
        return self._actors[node_id].set_up.remote(self._stored_app, node_id, self._num_nodes)

    def worker_pids(self) -> list[int]:
        """The process ids of the nodes' workers."""
        return list(ray.get([self._set_up(node_id) for node_id in self._actors]))

    def _run_queues(self, queues: dict[int, list[Message]], timeout: float | None) -> Iterator[Message]:
        store: dict[int, Any] = {}
        flights: dict[Any, _Flight] = {}
        waiting = {node_id: list(messages) for node_id, messages in queues.items()}

        def send(node_id: int, message: Message, tries: int = 1) -> None:
            deadline = None if timeout is None else time.monotonic() + timeout
            flights[self._send(node_id, message, store)] = _Flight(node_id, message, deadline, tries)

        for node_id, messages in waiting.items():
            send(node_id, messages.pop(0))
        while flights:
            ray.wait(list(flights), num_returns=1, timeout=_POLL_SECONDS)
            now = time.monotonic()
            done, _ = ray.wait(list(flights), num_returns=len(flights), timeout=0)  # all: none of these is late
            finished = [(future, flights.pop(future)) for future in done]
            late = [future for future, flight in flights.items() if flight.deadline and now > flight.deadline]
            for future in late:
                finished.append((None, flights.pop(future)))
            for future, flight in finished:
                reply = self._reply(future, flight, timeout)
                if reply is None:
                    send(flight.node_id, flight.message, flight.tries + 1)
                    continue
                assign_message_id(reply)
                yield reply
                if waiting[flight.node_id]:
                    send(flight.node_id, waiting[flight.node_id].pop(0))

    def _send(self, node_id: int, message: Message, store: dict[int, Any]) -> Any:
        """Sends a message with its array records beside it; the same record is put into the store once a round."""
        content = message.content
        names = [name for name, record in content.items() if isinstance(record, ArrayRecord)]
        references = []
        for name in names:
            record = content[name]
            if id(record) not in store:
                store[id(record)] = (ray.put(record), record)  # the record is kept, so that its id stays its own
            references.append(store[id(record)][0])
        rest = RecordDict({name: record for name, record in content.items() if name not in names})
        bare = with_metadata(rest, message.metadata)
        return self._actors[node_id].handle.remote(bare, names, *references)

    def _reply(self, future: Any, flight: _Flight, timeout: float | None) -> Message | None:
        """The reply of a finished flight; None when it must be flown again."""
        if future is None:
            self._restart(flight.node_id)
            return error_reply(flight.message, f"no reply within {timeout:g} s; its worker was ended")
        try:
            answer = ray.get(future)
        except RayActorError:
            answer = None
        except RayError as error:
            return error_reply(flight.message, f"{type(error).__name__}: {error}")
        if answer is None:
            log.warning("The worker of node %d died and is started again.", flight.node_id)
            self._wait_for(flight.node_id)
            if flight.tries < _TRIES:
                return None
            return error_reply(flight.message, f"its worker died {flight.tries} times")
        reply, records = answer
        for level, text in records:
            log.log(level, "%s", text)
        return reply  # type: ignore[no-any-return]

    def _restart(self, node_id: int) -> None:
        log.warning("The worker of node %d does not answer; it is ended and started again.", node_id)
        ray.kill(self._actors[node_id], no_restart=False)
        self._wait_for(node_id)

    def _wait_for(self, node_id: int) -> None:
        """Waits until a restarted worker answers; while it restarts, calls fail."""
        deadline = time.monotonic() + _RESTART_SECONDS
        while time.monotonic() < deadline:
            try:
                ray.get(self._set_up(node_id), timeout=_RESTART_SECONDS)
                return
            except RayError:
                time.sleep(_POLL_SECONDS)
        log.error("The worker of node %d did not come back within %g s.", node_id, _RESTART_SECONDS)

    def close(self) -> None:
        """Ends the actors, and Ray when this grid started it."""
        if self._owns_ray and ray.is_initialized():
            ray.shutdown()
            return
        for actor in self._actors.values():
            with contextlib.suppress(Exception):
                ray.kill(actor)


def _start_ray(address: str | None) -> None:
    on_term = signal.getsignal(signal.SIGTERM)
    try:
        if address is not None:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        else:
            ray.init(
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=True,
            )
    except Exception as error:
        where = f"at resources.ray_address={address!r}" if address else "on this machine"
        raise FedDPError(
            f'Ray could not be started {where}: {error}. Use resources.engine="local" to run without it.'
        ) from error
    if callable(on_term) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, on_term)  # Ray has put its own in its place, which exits with status 1
