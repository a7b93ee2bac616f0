"""The grid in this process: what a node is told, what becomes of one that fails or hangs."""

from __future__ import annotations

import logging
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedDP.errors import InvalidValueError
from fedDP.simulation import LocalGrid
from fedDP.strategies.messages import make_message
from tests.strategies.nodes import Node, make_strategy, model, releases
from tests.training.cases import Floats


def echo_app() -> ClientApp:
    """Answers with the node's number, its configuration and how often it was asked."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        asked = int(context.state.config_records["memory"]["asked"]) if context.state else 0  # type: ignore[arg-type]
        context.state["memory"] = ConfigRecord({"asked": asked + 1})
        answer: dict[str, Any] = {"node": context.node_id, "asked": asked, **context.node_config}
        return Message(RecordDict({"answer": ConfigRecord(answer)}), reply_to=message)

    @app.query("fail")
    def fail(message: Message, context: Context) -> Message:
        raise ValueError("the reason")

    @app.query("hang")
    def hang(message: Message, context: Context) -> Message:
        deadline = time.monotonic() + 30.0
        while time.monotonic() < deadline:
            time.sleep(0.01)
        return Message(RecordDict(), reply_to=message)

    return app


def to(node_id: int, message_type: str = "train", group_id: str = "g") -> Message:
    return make_message(RecordDict(), node_id=node_id, message_type=message_type, group_id=group_id)


def answers(replies: Any) -> list[dict[str, Any]]:
    return [dict(reply.content.config_records["answer"]) for reply in replies]


def test_nodes_are_told_who_they_are_and_keep_their_state() -> None:
    with LocalGrid(echo_app(), 3) as grid:
        assert list(grid.get_node_ids()) == [1, 2, 3]
        replies = list(grid.send_and_receive([to(3), to(1), to(3)]))
    expected = [
        {"node": 1, "asked": 0, "partition-id": 0, "num-partitions": 3},
        {"node": 3, "asked": 0, "partition-id": 2, "num-partitions": 3},
        {"node": 3, "asked": 1, "partition-id": 2, "num-partitions": 3},
    ]
    assert answers(replies) == expected


def test_replies_say_which_message_they_answer() -> None:
    grid = LocalGrid(echo_app(), 2)
    messages = [to(2, group_id="1.2"), to(1, group_id="1.1")]
    replies = list(grid.send_and_receive(messages))
    assert {(reply.metadata.reply_to_message_id, reply.metadata.group_id) for reply in replies} == {
        (message.metadata.message_id, message.metadata.group_id) for message in messages
    }
    ids = [reply.metadata.message_id for reply in replies]
    assert len(set(ids)) == 2
    assert all(ids)


def test_messages_can_be_pushed_and_pulled() -> None:
    grid = LocalGrid(echo_app(), 2)
    ids = list(grid.push_messages([to(1), to(2)]))
    assert len(set(ids)) == 2
    (second,) = grid.pull_messages([ids[1]])
    assert second.metadata.reply_to_message_id == ids[1]
    (first,) = grid.pull_messages(ids)
    assert first.metadata.reply_to_message_id == ids[0]
    assert list(grid.pull_messages(ids)) == []
    assert list(grid.send_and_receive([])) == []


def test_a_message_can_be_made_the_way_flower_makes_it() -> None:
    grid = LocalGrid(echo_app())
    message = grid.create_message(RecordDict(), "train", 1, "7")
    (reply,) = grid.send_and_receive([message])
    assert reply.metadata.group_id == "7"


@pytest.mark.parametrize("node_id", [0, 3, -1])
def test_unknown_nodes_are_refused(node_id: int) -> None:
    with pytest.raises(ValueError, match="expected one of the nodes 1 to 2"):
        LocalGrid(echo_app(), 2).send_and_receive([to(node_id)])


@pytest.mark.parametrize("num_nodes", [0, -1, 1.5, True, float("nan"), 5000])
def test_wrong_numbers_of_nodes_are_refused(num_nodes: Any) -> None:
    with pytest.raises(InvalidValueError, match="num_nodes="):
        LocalGrid(echo_app(), num_nodes)


def test_a_simulation_belongs_to_no_flower_run() -> None:
    with pytest.raises(NotImplementedError):
        _ = LocalGrid(echo_app()).run


def test_a_node_that_raises_is_logged_and_answered_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    grid = LocalGrid(echo_app(), 2)
    with caplog.at_level(logging.ERROR, "fedDP.node"):
        failed, fine = grid.send_and_receive([to(1, "query.fail"), to(2)])
    assert failed.has_error()
    assert failed.error.reason == "ValueError: the reason"
    assert failed.metadata.group_id == "g"
    assert not fine.has_error()
    assert "Node 1 failed." in caplog.text
    assert "Traceback" in caplog.text
    assert 'raise ValueError("the reason")' in caplog.text


def test_an_unknown_question_is_an_error_reply() -> None:
    (reply,) = LocalGrid(echo_app()).send_and_receive([to(1, "query.nothing")])
    assert reply.has_error()


def test_interrupts_by_the_user_are_not_swallowed() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LocalGrid(app).send_and_receive([to(1)])


def test_a_node_that_hangs_is_interrupted() -> None:
    grid = LocalGrid(echo_app(), 2)
    began = time.monotonic()
    hung, fine = grid.send_and_receive([to(1, "query.hang"), to(2)], timeout=0.2)
    assert time.monotonic() - began < 10.0
    assert hung.error.reason == "TimeoutError: no reply within 0.2 s"
    assert not fine.has_error()


def test_the_time_limit_is_each_messages_own_and_leaves_no_timer() -> None:
    handler = signal.getsignal(signal.SIGALRM)
    delay, interval = signal.setitimer(signal.ITIMER_REAL, 0.0)
    try:
        grid = LocalGrid(echo_app(), 2)
        replies = list(grid.send_and_receive([to(1, "query.hang"), to(1), to(2, "query.hang")], timeout=0.1))
        assert [reply.has_error() for reply in replies] == [True, False, True]
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.setitimer(signal.ITIMER_REAL, delay, interval)


def test_a_timer_that_runs_already_goes_on() -> None:
    rung: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    delay, interval = signal.setitimer(signal.ITIMER_REAL, 0.4)
    try:
        list(LocalGrid(echo_app()).send_and_receive([to(1, "query.hang")], timeout=0.1))
        assert rung == []
        time.sleep(0.5)
        assert rung == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, delay, interval)


def test_outside_the_main_thread_there_is_no_time_limit() -> None:
    found: list[Any] = []
    grid = LocalGrid(echo_app())
    thread = threading.Thread(target=lambda: found.extend(grid.send_and_receive([to(1)], timeout=5.0)))
    thread.start()
    thread.join()
    assert not found[0].has_error()


SITES = {"a": [3, 3, 3, 3], "b": [2, 2]}


def own(site: int, client: int, parameters: Any) -> Floats:
    vector: Floats = np.random.default_rng([site, client]).normal(size=7)
    return vector


def without(lost: Any) -> Floats:
    def update(site: int, client: int, parameters: Any) -> Floats:
        return np.zeros(7) if (site, client) in lost else own(site, client, parameters)

    return releases(make_strategy(), Node(SITES, update), model((7,)))[0]


@pytest.mark.parametrize("num_nodes", [1, 2, 4])
def test_the_sum_does_not_depend_on_the_number_of_nodes(num_nodes: int) -> None:
    mean = releases(make_strategy(block_size=2), Node(SITES, own), model((7,)), num_nodes=num_nodes)[0]
    assert np.array_equal(mean, without([]))


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_a_client_that_raises_is_lost_alone(num_nodes: int, caplog: pytest.LogCaptureFixture) -> None:
    def update(site: int, client: int, parameters: Any) -> Floats:
        if (site, client) == (0, 2):
            raise ArithmeticError("diverged")
        return own(site, client, parameters)

    with caplog.at_level(logging.ERROR, "fedDP.node"):
        mean = releases(make_strategy(), Node(SITES, update), model((7,)), num_nodes=num_nodes)[0]
    assert np.array_equal(mean, without([(0, 2)]))
    assert "client 2 of site a failed" in caplog.text
    assert "ArithmeticError: diverged" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_a_client_that_hangs_is_lost_alone(num_nodes: int, caplog: pytest.LogCaptureFixture) -> None:
    """Also when its node would go on after an exception in a block: the interrupt is none."""

    def update(site: int, client: int, parameters: Any) -> Floats:
        deadline = time.monotonic() + 30.0
        while (site, client) == (0, 2) and time.monotonic() < deadline:
            time.sleep(0.01)
        return own(site, client, parameters)

    began = time.monotonic()
    with caplog.at_level(logging.ERROR, "fedDP.node"):
        mean = releases(make_strategy(), Node(SITES, update), model((7,)), num_nodes=num_nodes, timeout=0.5)[0]
    assert time.monotonic() - began < 20.0
    assert np.array_equal(mean, without([(0, 2)]))
    lost = [record.getMessage() for record in caplog.records if "counts as zero" in record.getMessage()]
    assert len(lost) == 1
    assert "client 2 of site a failed" in lost[0]
    assert "no reply within 0.5 s" in lost[0]
