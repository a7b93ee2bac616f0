"""Who is enrolled, learned from the nodes, and how cohorts are shared out over them."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

import fedDP.strategies.enrolment as enrolment_module
from fedDP.errors import DataError, InvalidValueError
from fedDP.simulation.local_grid import LocalGrid
from fedDP.strategies import Enrolment
from fedDP.strategies.enrolment import enrol, make_describe, pack_sites
from tests.strategies.nodes import Node, make_strategy, model, run

SITES = {"bern": [3, 40, 5, 0, 9, 9], "aarau": [2, 2, 70], "chur": [1]}


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment_module, "_POLL_SECONDS", 0.01)


def by_node(described: dict[int, dict[str, Sequence[int]]], *, features: dict[int, int] | None = None) -> ClientApp:
    """Nodes that describe what they are told to; a node that is left out fails."""
    app = ClientApp()

    @app.query("describe")
    def describe(message: Message, context: Context) -> Message:
        node = int(context.node_id)
        if node not in described:
            raise OSError("no such file: patients.csv")
        counts = [np.array(records) for records in described[node].values()]
        width = (features or {}).get(node, 13)
        return Message(
            pack_sites(list(described[node]), counts, num_features=width, num_classes=2, replica=True), reply_to=message
        )

    return app


def test_clients_are_numbered_by_site_name() -> None:
    enrolled = enrol(LocalGrid(Node(SITES).app(), 2))
    assert enrolled.sites == ("aarau", "bern", "chur")
    assert enrolled.num_clients == 10
    assert [counts.tolist() for counts in enrolled.records] == [[2, 2, 70], [3, 40, 5, 0, 9, 9], [1]]
    assert enrolled.nodes == ((1, 2),) * 3
    assert (enrolled.num_features, enrolled.num_classes) == (2, 2)
    assert enrolled.serving("bern") == (1, 2)


def test_every_node_may_serve_its_own_site() -> None:
    app = by_node({1: {"chur": [1]}, 2: {"aarau": [2, 2, 70]}, 3: {"bern": [3, 40], "aarau": [2, 2, 70]}})
    enrolled = enrol(LocalGrid(app, 3))
    assert enrolled.nodes == ((2, 3), (3,), (1,))
    shares = enrolled.blocks(np.arange(6), batch_size=4, block_size=2)
    for node, plans in shares.items():
        assert all(node in enrolled.serving(plan.site) for plan in plans)


@pytest.mark.parametrize("num_nodes", [1, 2, 4, 9])
@pytest.mark.parametrize("block_size", [1, 2, 32])
def test_blocks_are_the_same_for_any_number_of_nodes_and_hold_everybody_once(num_nodes: int, block_size: int) -> None:
    def plans(nodes: int) -> set[Any]:
        enrolled = enrol(LocalGrid(Node(SITES).app(), nodes))
        shares = enrolled.blocks(np.array([0, 2, 3, 4, 6, 7, 8, 9]), batch_size=4, block_size=block_size)
        every = [plan for shared in shares.values() for plan in shared]
        assert len(set(every)) == len(every)
        return set(every)

    shared = plans(num_nodes)
    assert shared == plans(1)
    members = sorted((plan.site, client) for plan in shared for client in plan.clients)
    # Client 6 is bern's number 3, which has no records.
    expected = [("aarau", 0), ("aarau", 2), ("bern", 0), ("bern", 1), ("bern", 4), ("bern", 5), ("chur", 0)]
    assert members == expected


def test_work_is_shared_out_evenly_by_records() -> None:
    enrolled = enrol(LocalGrid(Node({"a": [16] * 64}).app(), 4))
    shares = enrolled.blocks(np.arange(64), batch_size=16, block_size=4)
    assert sorted(shares) == [1, 2, 3, 4]
    assert {sum(plan.cost for plan in plans) for plans in shares.values()} == {64}


def test_an_empty_cohort_has_no_blocks() -> None:
    enrolled = enrol(LocalGrid(Node(SITES).app()))
    assert enrolled.blocks(np.array([], dtype=np.int64), batch_size=4, block_size=2) == {}


def test_nodes_that_disagree_about_a_site_are_refused() -> None:
    app = by_node({1: {"bern": [3, 40]}, 2: {"bern": [3, 41]}})
    with pytest.raises(DataError, match="Two nodes describe a site 'bern'"):
        enrol(LocalGrid(app, 2))


def test_sites_with_other_features_are_refused() -> None:
    app = by_node({1: {"bern": [3]}, 2: {"chur": [4]}}, features={2: 12})
    with pytest.raises(DataError, match="'bern' has 13 features and 2 classes, 'chur' has 12"):
        enrol(LocalGrid(app, 2))


def test_a_node_that_cannot_describe_itself_is_named() -> None:
    with pytest.raises(DataError, match=re.escape("Node 2 could not describe its data: OSError: no such file")):
        enrol(LocalGrid(by_node({1: {"bern": [3]}}), 2))


@pytest.mark.usefixtures("hurried")
def test_too_few_clients_are_refused_after_the_timeout() -> None:
    with pytest.raises(DataError, match=r"Only 10 clients on 2 nodes .* expected at least 11\. Start the nodes"):
        enrol(LocalGrid(Node(SITES).app(), 2), min_clients=11, timeout_seconds=0.05)
    strategy = make_strategy(min_enrolled=10)
    assert strategy.enrol(LocalGrid(Node(SITES).app())).num_clients == 10


@pytest.mark.usefixtures("hurried")
def test_nobody_is_too_few() -> None:
    with pytest.raises(DataError, match="Only 0 clients"):
        enrol(LocalGrid(by_node({1: {"bern": []}})), timeout_seconds=0.05)


@pytest.mark.usefixtures("hurried")
def test_nodes_that_come_late_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Filling(LocalGrid):
        seen: tuple[int, ...] = (1, 2)

        def get_node_ids(self) -> Any:
            return self.seen

    grid = Filling(by_node({1: {"bern": [3]}, 2: {"chur": [4]}}), 2)
    grid.seen = ()
    filled = iter([(1,), (1,), (1, 2)])
    monkeypatch.setattr(time, "sleep", lambda seconds: setattr(grid, "seen", next(filled)))
    enrolled = enrol(grid, min_clients=2, timeout_seconds=60.0)
    assert enrolled.sites == ("bern", "chur")


def test_a_population_whose_sums_could_overflow_is_refused() -> None:
    huge = Enrolment(("a",), (np.ones(1 << 22, dtype=np.int64),), ((1,),), 2, 2)
    with pytest.raises(InvalidValueError, match="num_clients"):
        make_strategy().enrol(LocalGrid(Node(SITES).app()), huge)


def test_a_given_enrolment_is_used_as_it_is() -> None:
    node = Node(SITES)
    given = Enrolment(("chur",), (np.array([1]),), ((1,),), 2, 2)
    strategy = make_strategy()
    assert strategy.enrol(LocalGrid(node.app()), given) is given
    run(strategy, node, model((3,)))
    assert node.orders == [(1, [(0,)])]
    assert strategy.denominator == 1.0


def test_the_enrolment_stays_fixed_over_a_run() -> None:
    class Growing(LocalGrid):
        def get_node_ids(self) -> Any:
            return [1]

    node = Node({"a": [1, 1]})
    strategy = make_strategy()
    strategy.enrol(Growing(node.app()))
    node.sites = {"a": [1, 1], "b": [1] * 100}
    run(strategy, node, model((3,)), rounds=2)
    assert strategy.denominator == 2.0
    assert [blocks for _, blocks in node.orders] == [[(0, 1)], [(0, 1)]]


def test_two_deployed_nodes_with_one_site_name_are_refused() -> None:
    """Equal record counts do not make their data the same."""
    counts = [np.full(5, 2, dtype=np.int64)]
    replies = []
    for node_id in (1, 2):
        question = make_describe(node_id)
        content = pack_sites(["all"], counts, num_features=3, num_classes=2, replica=False)
        replies.append(Message(content, reply_to=question))
    with pytest.raises(DataError, match="Two nodes describe a site 'all'"):
        Enrolment.from_replies(replies)
