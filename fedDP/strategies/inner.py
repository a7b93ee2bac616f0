"""Any Flower strategy as the server's optimiser.

After noise the mean update is public, so what an inner strategy makes of it is post-processing and costs nothing. It is
given one synthetic reply, "global + mean update", and never sees a node, a count or a metric.
"""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedDP.errors import ModelError, UnsupportedError
from fedDP.strategies.messages import from_array_record, make_message, to_array_record

Arrays = dict[str, npt.NDArray[np.floating]]

_NODE_ID = 1

_SEVERAL_REPLIES = "it needs several clients' own replies, which never reach the server's optimiser"
_ROBUST = f"{_SEVERAL_REPLIES}, so robustness would be claimed and not given"
_REFUSED: dict[str, str] = {
    "Bulyan": _ROBUST,
    "Krum": _ROBUST,
    "MultiKrum": _ROBUST,
    "FedMedian": _ROBUST,
    "FedTrimmedAvg": _ROBUST,
    "QFedAvg": "it weighs clients by their training loss, which is private",
    "FedXgbBagging": "it sends trees, not arrays that can be clipped",
    "FedXgbCyclic": "it sends trees, not arrays that can be clipped",
    "DifferentialPrivacyClientSideAdaptiveClipping": "its noise is not accounted for here, and would be added twice",
    "DifferentialPrivacyClientSideFixedClipping": "its noise is not accounted for here, and would be added twice",
    "DifferentialPrivacyServerSideAdaptiveClipping": "its noise is not accounted for here, and would be added twice",
    "DifferentialPrivacyServerSideFixedClipping": "its noise is not accounted for here, and would be added twice",
}


class _StubGrid(Grid):
    """One node that can be counted and never reached."""

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return make_message(content, node_id=dst_node_id, message_type=message_type, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return [_NODE_ID]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError("An inner strategy cannot send messages.")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError("An inner strategy cannot receive messages.")

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError("An inner strategy cannot send messages.")


class InnerStrategy:
    """Drives a copy of a Flower strategy with privatised means.

    Args:
        strategy: FedAvg, FedAvgM, FedAdam, FedYogi, FedAdagrad, FedProx, or another that needs one reply and no
            private metric. The object itself is never touched.

    Raises:
        UnsupportedError: for strategies known to need more, by name and with the reason.
    """

    def __init__(self, strategy: flower.Strategy) -> None:
        for cls in type(strategy).__mro__:
            if reason := _REFUSED.get(cls.__name__):
                raise UnsupportedError(f"The inner strategy {type(strategy).__name__} is refused: {reason}.")
        self._fresh = copy.deepcopy(strategy)
        self.name = type(strategy).__name__
        if hasattr(self._fresh, "fraction_train"):
            self._fresh.fraction_train = 0.0  # it captures its state and builds no message
        self.reset()

    def reset(self) -> None:
        """Forgets the momenta of earlier rounds."""
        self._strategy = copy.deepcopy(self._fresh)

    def probe(self, arrays: Arrays) -> None:
        """Tries one synthetic round on a copy, before anything is charged.

        Raises:
            UnsupportedError: when no arrays come back, or others than the model's, or its state cannot be saved.
        """
        trial = copy.deepcopy(self)
        try:
            trial.configure(1, arrays)
            trial.step(1, arrays, {name: np.zeros_like(value) for name, value in arrays.items()})
            trial.restore(trial.state())
        except (ModelError, UnsupportedError) as error:
            raise UnsupportedError(f"The inner strategy {self.name} cannot be used: {error}") from error
        except Exception as error:
            raise UnsupportedError(
                f"The inner strategy {self.name} cannot be used: one synthetic reply gave "
                f"{type(error).__name__}: {error}"
            ) from error

    def configure(self, server_round: int, arrays: Arrays) -> ConfigRecord:
        """Lets the strategy prepare a round; returns the configuration that it would have sent to clients."""
        config = ConfigRecord({"server-round": server_round})
        with _quiet_flower(), _task_identity():
            messages = list(self._strategy.configure_train(server_round, to_array_record(arrays), config, _StubGrid()))
        for message in messages:
            for record in message.content.config_records.values():
                config.update(record)
        return config

    def step(self, server_round: int, arrays: Arrays, mean_update: Mapping[str, npt.NDArray[np.floating]]) -> Arrays:
        """Applies a privatised mean update.

        Args:
            server_round: its number, from 1.
            arrays: the global model.
            mean_update: by name, the shapes of `arrays`.

        Returns:
            The new global model, with the names, shapes and dtypes of `arrays`.

        Raises:
            UnsupportedError: when the strategy gives no arrays back, or others than the model's.
        """
        key = getattr(self._strategy, "arrayrecord_key", "arrays")
        weight = getattr(self._strategy, "weighted_by_key", "num-examples")
        moved = {name: (value + mean_update[name]).astype(value.dtype) for name, value in arrays.items()}
        content = RecordDict({key: to_array_record(moved), "metrics": MetricRecord({weight: 1})})
        reply = make_message(content, node_id=_NODE_ID, message_type="train")
        with _quiet_flower():
            record, _ = self._strategy.aggregate_train(server_round, [reply])
        if record is None:
            raise UnsupportedError("it returned no arrays for one reply")
        result = from_array_record(record)
        if {name: value.shape for name, value in result.items()} != {
            name: value.shape for name, value in arrays.items()
        }:
            raise UnsupportedError("it returned arrays with other names or shapes")
        return {name: result[name].astype(value.dtype) for name, value in arrays.items()}

    def state(self) -> bytes:
        """The strategy with its momenta, for a checkpoint.

        Raises:
            UnsupportedError: when it holds what cannot be pickled, such as a lambda.
        """
        try:
            return pickle.dumps(self._strategy)
        except Exception as error:  # pickle raises what it likes
            raise UnsupportedError(f"its state cannot be saved for a checkpoint ({error})") from error

    def restore(self, state: bytes) -> None:
        """The inverse of `state`. Only for bytes from a checkpoint of one's own: unpickling runs code."""
        self._strategy = pickle.loads(state)


@contextmanager
def _quiet_flower() -> Iterator[None]:
    """Hides the line a round that Flower logs about one reply, or about no training at all."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _task_identity() -> Iterator[None]:
    """Lets a strategy build messages outside a Flower process; they are read for their configuration and dropped."""
    names = ("_run_id", "_node_id", "_task_id")
    saved = {name: getattr(TaskIdentity, name) for name in names}
    for name in names:
        if saved[name] is None:
            setattr(TaskIdentity, name, 1)
    try:
        yield
    finally:
        for name in names:
            setattr(TaskIdentity, name, saved[name])
