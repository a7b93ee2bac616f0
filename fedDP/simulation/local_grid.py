"""A grid in this process: for tests, for debugging, and where Ray is not wanted."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from flwr.app import Message
from flwr.clientapp import ClientApp

from fedDP.simulation.base_grid import SimulationGrid, error_reply, node_context
from fedDP.strategies.messages import assign_message_id

log = logging.getLogger("fedDP.node")


class LocalGrid(SimulationGrid):
    """Calls the ClientApp in-process, one node after the other.

    A node that raises is logged with its traceback and answered with an error. A node that hangs is interrupted after
    the timeout when the grid is used in the main thread and the hang is in Python code; elsewhere nothing in this
    process could interrupt it (`RayGrid` ends the worker).

    Args:
        client_app: what every node runs.
        num_nodes: number of nodes.
    """

    def __init__(self, client_app: ClientApp, num_nodes: int = 1) -> None:
        super().__init__(num_nodes)
        self._client_app = client_app
        self._contexts = {node_id: node_context(node_id, num_nodes) for node_id in self.get_node_ids()}

    def _run_queues(self, queues: dict[int, list[Message]], timeout: float | None) -> Iterator[Message]:
        for node_id, messages in sorted(queues.items()):
            for message in messages:
                try:
                    with _time_limit(timeout):
                        reply = self._client_app(message, self._contexts[node_id])
                except (Exception, _Interrupted) as error:
                    log.exception("Node %d failed.", node_id)
                    name = "TimeoutError" if isinstance(error, _Interrupted) else type(error).__name__
                    reply = error_reply(message, f"{name}: {error}")
                assign_message_id(reply)
                yield reply


class _Interrupted(BaseException):
    """The time is up. No Exception: a node that goes on after a client's error must not go on after this."""


@contextmanager
def _time_limit(seconds: float | None) -> Iterator[None]:
    """Raises _Interrupted in the main thread after `seconds`; a timer that runs already goes on afterwards."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise _Interrupted(f"no reply within {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, interrupt)
    began = time.monotonic()
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, previous)
        if remaining:
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, remaining - (time.monotonic() - began)), interval)
