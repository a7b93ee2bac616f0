"""What the grids of a simulation have in common: Flower's `Grid`, without a SuperLink."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedDP.ranges import Range
from fedDP.strategies.messages import assign_message_id, make_message

NUM_NODES = Range(low=1, high=4096, integer=True)

_CLIENT_APP_FAILED = 2  # flwr's ErrorCode.CLIENT_APP_RAISED_EXCEPTION


class SimulationGrid(Grid):
    """Nodes 1 to `num_nodes` that run one ClientApp.

    Every node sees ``node_config = {"partition-id": index, "num-partitions": num_nodes}``, as in Flower's simulation.
    """

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = int(NUM_NODES.check("num_nodes", num_nodes))
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Run) -> None:
        """A simulation's grid belongs to no Flower run."""

    @property
    def run(self) -> Run:
        raise NotImplementedError("This grid belongs to no Flower run.")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return make_message(content, node_id=dst_node_id, message_type=message_type, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return range(1, self._num_nodes + 1)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Sends messages and keeps their replies for `pull_messages`."""
        sent = list(messages)
        ids = [assign_message_id(message) for message in sent]
        for reply in self.send_and_receive(sent):
            self._replies[reply.metadata.reply_to_message_id] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(message_id) for message_id in message_ids if message_id in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Runs each message at its node; a node works on its messages one after the other.

        Args:
            messages: to nodes of this grid.
            timeout: seconds that a node may take for one message; None waits for ever.

        Returns:
            One reply a message: the ClientApp's, or an error that says why there is none.
        """
        queues: dict[int, list[Message]] = {}
        for message in messages:
            node_id = message.metadata.dst_node_id
            if node_id not in self.get_node_ids():
                raise ValueError(f"dst_node_id={node_id}: expected one of the nodes 1 to {self._num_nodes}.")
            assign_message_id(message)
            queues.setdefault(node_id, []).append(message)
        return list(self._run_queues(queues, timeout)) if queues else []

    @abstractmethod
    def _run_queues(self, queues: dict[int, list[Message]], timeout: float | None) -> Iterator[Message]:
        """Runs every node's messages in order and yields their replies."""

    def close(self) -> None:
        """Releases what the grid holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def node_context(node_id: int, num_nodes: int) -> Context:
    """What a node's ClientApp is told about itself."""
    return Context(
        run_id=1,
        node_id=node_id,
        node_config={"partition-id": node_id - 1, "num-partitions": num_nodes},
        state=RecordDict(),
        run_config={},
    )


def error_reply(message: Message, reason: str) -> Message:
    """A reply that says why there is none."""
    return Message(Error(code=_CLIENT_APP_FAILED, reason=reason), reply_to=message)
