"""The ledgers of sites that train on their own records: charged together, apart from each other, for ever."""

from __future__ import annotations

import itertools
import math
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedDP.accounting import (
    Gaussian,
    Guarantee,
    Poisson,
    epsilon,
    gdp_epsilon,
    parallel_guarantee,
    person_epsilon,
    sequential_guarantee,
)
from fedDP.budget import (
    Budget,
    BudgetExceeded,
    Ledger,
    RecordLedgers,
    RecordRelease,
    SiteBudgetExceeded,
    verify,
)
from fedDP.budget.record_places import places
from fedDP.errors import InvalidValueError, LedgerError, UnsupportedError

from .ledgers import SetClock, anchor_beside, without_sync

DELTA = 1e-6
BUDGET = Budget(delta=DELTA, week=2.0, year=4.0, lifetime=6.0)
SITES = ("Aarhus", "Bergen", "Cork")
# Sites differ in how many records they have, so in the rate, and in the steps of a round.
STEPS = {
    "Aarhus": Gaussian(1.2, sampling=Poisson(0.01), count=20),
    "Bergen": Gaussian(1.2, sampling=Poisson(0.02), count=20),
    "Cork": Gaussian(2.0, sampling=Poisson(0.05), count=5),
}
FULL = {site: Gaussian(noise, count=3) for site, noise in zip(SITES, (20.0, 30.0, 40.0), strict=True)}


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    without_sync(monkeypatch)


def open_ledgers(location: Any, events: dict[str, Gaussian] = STEPS, **changes: Any) -> RecordLedgers:
    values: dict[str, Any] = {
        "sites": list(events),
        "population": "trial",
        "budget": BUDGET,
        "plan": {site: [event] for site, event in events.items()},
        "clock": SetClock(),
        **changes,
    }
    return RecordLedgers.open(location, **values)


def releases(events: dict[str, Gaussian] = STEPS, **changes: Gaussian) -> dict[str, RecordRelease]:
    events = {**events, **changes}
    return {site: RecordRelease(event=event, clip_norm=1.0, denominator=32.0) for site, event in events.items()}


def spent(ledgers: RecordLedgers) -> dict[str, list[Gaussian]]:
    return {site: ledgers.ledger(site).events() for site in ledgers.sites}


# What is charged


def test_every_site_is_charged_for_all_its_steps(tmp_path: Path) -> None:
    ledgers = open_ledgers(tmp_path)
    grants = ledgers.charge_round(releases(), run_id="run", round=1)
    assert set(grants) == set(SITES)
    assert all(grant.used for grant in grants.values())  # no noise is drawn for them but at the sites
    assert spent(ledgers) == {site: [event] for site, event in STEPS.items()}
    for site in SITES:
        definition = ledgers.ledger(site).definition
        assert (definition.unit, definition.population, definition.mode) == ("record", f"trial/{site}", "renyi")
        (charge,) = [row for row in ledgers.ledger(site).rows() if row["kind"] == "charge"]
        assert (charge["clip_norm"], charge["denominator"], charge["purpose"]) == (1.0, 32.0, "train")


def test_two_runs_spend_what_one_longer_run_spends(tmp_path: Path) -> None:
    for round in range(1, 5):
        open_ledgers(tmp_path / "two").charge_round(releases(), run_id=f"run {round % 2}", round=round)
    one = open_ledgers(tmp_path / "one")
    for round in range(1, 5):
        one.charge_round(releases(), run_id="run", round=round)
    two = open_ledgers(tmp_path / "two")
    assert spent(two) == spent(one) == {site: [event.repeated(4)] for site, event in STEPS.items()}
    assert two.account() == one.account()
    assert two.account("week") == one.account("week")
    for site in SITES:
        url = two.ledger(site).url
        assert verify(url).charges == 4
        state, other = two.ledger(site)._state, one.ledger(site)._state
        assert state.week_units == other.week_units


def test_each_call_is_a_charge_of_its_own(tmp_path: Path) -> None:
    """The site draws noise whenever it trains, so a round that is tried again in the same process is paid again."""
    ledgers = open_ledgers(tmp_path)
    first = ledgers.charge_round(releases(), run_id="run", round=1)
    second = ledgers.charge_round(releases(), run_id="run", round=1)
    assert [grant.attempt for grant in (*first.values(), *second.values())] == [1, 1, 1, 2, 2, 2]
    assert spent(ledgers)["Cork"] == [STEPS["Cork"].repeated(2)]
    ledgers.charge("Cork", releases()["Cork"], run_id="run", round=1)
    assert spent(ledgers)["Cork"] == [STEPS["Cork"].repeated(3)]
    assert spent(ledgers)["Bergen"] == [STEPS["Bergen"].repeated(2)]


def test_released_rounds_are_marked_and_not_charged_again(tmp_path: Path) -> None:
    ledgers = open_ledgers(tmp_path)
    grants = ledgers.charge_round(releases(), run_id="run", round=1)
    assert [ledgers.ledger(site).num_charges(unreleased=True) for site in SITES] == [1, 1, 1]
    ledgers.mark_released(grants)
    assert [ledgers.ledger(site).num_charges(unreleased=True) for site in SITES] == [0, 0, 0]
    with pytest.raises(LedgerError, match=r"Site 'Aarhus' refuses round 1.* was released already"):
        ledgers.charge_round(releases(), run_id="run", round=1)
    with pytest.raises(LedgerError, match="Site 'Aarhus' cannot mark the release"):
        ledgers.mark_released(grants)
    with pytest.raises(LedgerError, match="Site 'Bergen' cannot mark the release"):
        ledgers.mark_released({"Bergen": replace(grants["Aarhus"], seq=99)})


@pytest.mark.parametrize("missing", SITES)
def test_a_round_without_one_of_the_sites_is_refused(tmp_path: Path, missing: str) -> None:
    """An epsilon of records assumes that they take part in every round."""
    ledgers = open_ledgers(tmp_path)
    some = {site: release for site, release in releases().items() if site != missing}
    for given in (some, {**releases(), "Dublin": releases()["Cork"]}, {}):
        with pytest.raises(InvalidValueError, match=r"releases=.* a value for each of the sites Aarhus, Bergen, Cork"):
            ledgers.charge_round(given, run_id="run", round=1)
    assert spent(ledgers) == {site: [] for site in SITES}


# Refusals


def test_a_refusal_names_the_site_and_the_window_and_nobody_else_spends(tmp_path: Path) -> None:
    ledgers = open_ledgers(tmp_path)
    heavy = STEPS["Cork"].repeated(5000)
    with pytest.raises(
        SiteBudgetExceeded, match="Site 'Cork' refuses round 1, of which nothing may train; no"
    ) as caught:
        ledgers.charge_round(releases(Cork=heavy), run_id="run", round=1)
    refusal = caught.value
    assert isinstance(refusal, BudgetExceeded)
    assert (refusal.site, refusal.window, refusal.key, refusal.charged) == ("Cork", "lifetime", "lifetime", ())
    assert refusal.asked >= epsilon([heavy], DELTA)
    assert spent(ledgers) == {site: [] for site in SITES}  # though Aarhus and Bergen come first otherwise
    copy = pickle.loads(pickle.dumps(refusal))
    assert (copy.site, copy.window, str(copy)) == (refusal.site, refusal.window, str(refusal))


def test_each_window_of_a_site_refuses(tmp_path: Path) -> None:
    clock = SetClock()
    budget = Budget(delta=DELTA, week=1.0, year=1.3, lifetime=1.6)
    ledgers = open_ledgers(tmp_path, FULL, clock=clock, budget=budget)
    rounds, seen = itertools.count(1), []

    def charge_until_refused() -> None:
        while True:
            ledgers.charge_round(releases(FULL), run_id="run", round=next(rounds))

    for week in ("2026-W10", "2026-W11", "2028-W10"):
        clock.set_week(week)
        with pytest.raises(SiteBudgetExceeded) as caught:
            charge_until_refused()
        seen.append((caught.value.site, caught.value.window))
    assert seen == [("Aarhus", "week"), ("Aarhus", "year"), ("Aarhus", "lifetime")]  # the one with the least noise
    charges = {ledgers.ledger(site).num_charges() for site in SITES}
    assert charges == {next(rounds) - 1 - len(seen)}


def test_a_site_that_refuses_unforeseen_leaves_the_others_charged(tmp_path: Path) -> None:
    """Another process has spent the rest of Bergen's budget since this one has read it."""
    ledgers, other = open_ledgers(tmp_path), open_ledgers(tmp_path)
    heavy = next(
        STEPS["Bergen"].repeated(times)
        for times in range(200, 0, -1)
        if other.ledger("Bergen").would_grant(STEPS["Bergen"].repeated(times), [other.ledger("Bergen").last_week])
    )
    other.charge("Bergen", releases(Bergen=heavy)["Bergen"], run_id="other", round=1)
    with pytest.raises(SiteBudgetExceeded, match="may train; charged for it and spent: Aarhus") as caught:
        ledgers.charge_round(releases(), run_id="run", round=1)
    assert (caught.value.site, caught.value.charged) == ("Bergen", ("Aarhus",))
    assert spent(ledgers) == {"Aarhus": [STEPS["Aarhus"]], "Bergen": [heavy], "Cork": []}


def test_sites_with_budgets_of_their_own(tmp_path: Path) -> None:
    budgets = {**dict.fromkeys(SITES, BUDGET), "Bergen": Budget(delta=1e-7, lifetime=0.1)}
    ledgers = open_ledgers(tmp_path, budget=budgets)
    with pytest.raises(SiteBudgetExceeded, match="Site 'Bergen'"):
        ledgers.charge_round(releases(), run_id="run", round=1)
    assert ledgers.account().delta == DELTA
    assert ledgers.account().sites[1].delta == 1e-7
    with pytest.raises(LedgerError, match=r"Site 'Aarhus' at .*budget.week is 2.0 in the ledger"):
        open_ledgers(tmp_path, budget=Budget(delta=DELTA, week=3.0))


def test_a_ledger_that_cannot_vouch_names_its_site(tmp_path: Path) -> None:
    ledgers = open_ledgers(tmp_path)
    with pytest.raises(LedgerError, match=r"Site 'Aarhus' refuses round 1, .*A seeded run cannot charge a real ledger"):
        ledgers.charge_round(releases(), run_id="run", round=1, rng="seeded")
    with pytest.raises(LedgerError, match=r"Site 'Bergen' refuses round 1.*no site was charged.*cost=inf"):
        ledgers.charge_round(releases(Bergen=Gaussian(1e-300)), run_id="run", round=1)
    assert spent(ledgers) == {site: [] for site in SITES}


def test_a_clock_that_jumps_charges_nobody(tmp_path: Path) -> None:
    clock = SetClock(kind="system")
    ledgers = open_ledgers(tmp_path, clock=clock)
    ledgers.charge_round(releases(), run_id="run", round=1)
    clock.set_week("2026-W40")
    with pytest.raises(LedgerError, match=r"Site 'Aarhus' refuses round 2.*The clock jumped"):
        ledgers.charge_round(releases(), run_id="run", round=2)
    assert spent(ledgers) == {site: [event] for site, event in STEPS.items()}


@pytest.mark.parametrize(
    "change",
    [{"event": "gaussian"}, {"event": None}, {"clip_norm": math.nan}, {"clip_norm": True}, {"denominator": -1.0}],
)
def test_a_release_outside_its_ranges(change: dict[str, Any]) -> None:
    values: dict[str, Any] = {"event": STEPS["Cork"], "clip_norm": 1.0, "denominator": 32.0, **change}
    with pytest.raises(InvalidValueError, match=f"{next(iter(change))}="):
        RecordRelease(**values)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"sites": []}, "sites"),
        ({"sites": ["Aarhus", "Aarhus"]}, "sites"),
        ({"sites": "Aarhus"}, "sites"),
        ({"sites": ["Aarhus", ""]}, "site"),
        ({"sites": ["Aarhus", "a\nb"]}, "site"),
        ({"sites": ["Aarhus", "e\u0301"]}, "site"),
        ({"sites": ["Aarhus", None]}, "site"),
        ({"population": ""}, "population"),
        ({"mode": "plan"}, "mode"),
        ({"budget": {"Aarhus": BUDGET}}, "budget"),
        ({"budget": dict.fromkeys(SITES, 1.0)}, "budget"),
        ({"budget": 1.0}, "budget"),
        ({"plan": {"Aarhus": []}}, "plan"),
        ({"anchors": {"Dublin": {}}}, "anchors"),
        ({"neighboring_relation": "adjacent"}, "neighboring_relation"),
    ],
)
def test_terms_that_make_no_sense_create_nothing(tmp_path: Path, change: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValueError, match=f"{name}="):
        open_ledgers(tmp_path, **change)
    assert list(tmp_path.iterdir()) == []


# Where they are kept


ODD = [
    "../x",
    "..",
    ".",
    "A/B",
    "a/b",
    "A-B",
    "a-b",
    "x",
    "X",
    "København",
    "東京",
    "a%2Fb",
    "C:\\x",
    "é",
    "E",
    "e" * 900,
]


def test_odd_names_neither_clash_nor_leave_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "ledgers"
    found = places(folder, ODD)
    assert len({Path(place).name.lower() for place in found.values()}) == len(ODD)
    assert all(Path(place).parent == folder and len(Path(place).name) < 120 for place in found.values())
    assert all(Path(place).name.isascii() for place in found.values())
    events = {site: Gaussian(50.0, count=index) for index, site in enumerate(ODD, start=1)}
    open_ledgers(folder, events).charge_round(releases(events), run_id="run", round=1)
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    assert len(list(folder.glob("*.db"))) == len(list(folder.glob("*.db.anchor"))) == len(ODD)
    again = open_ledgers(folder, dict(reversed(events.items())))
    assert spent(again) == {site: [event] for site, event in sorted(events.items())}
    assert len({again.ledger(site).definition.population for site in ODD}) == len(ODD)


def test_a_ledger_serves_its_site_alone(tmp_path: Path) -> None:
    open_ledgers(tmp_path)
    with pytest.raises(
        LedgerError, match=r"Site 'Aarhus' .*population is 'trial/Aarhus' in the ledger, 'other/Aarhus'"
    ):
        open_ledgers(tmp_path, population="other")
    one = {"a": str(tmp_path / "one.db"), "b": str(tmp_path / "one.db")}
    with pytest.raises(LedgerError, match=r"Site 'b' .*population is 'trial/a' in the ledger"):
        open_ledgers(one, {"a": STEPS["Cork"], "b": STEPS["Cork"]})
    # A name with a slash is not a population and a site.
    open_ledgers({"c": str(tmp_path / "c.db")}, {"c": STEPS["Cork"]}, population="a/b")
    with pytest.raises(LedgerError, match="population is 'a%2Fb/c' in the ledger"):
        open_ledgers({"b/c": str(tmp_path / "c.db")}, {"b/c": STEPS["Cork"]}, population="a")


def test_a_database_for_each_site(tmp_path: Path) -> None:
    where = {site: f"sqlite:///{tmp_path}/{number}.db" for number, site in enumerate(SITES)}
    ledgers = open_ledgers(where)
    ledgers.charge_round(releases(), run_id="run", round=1)
    assert [ledgers.ledger(site).url for site in SITES] == list(where.values())
    assert spent(open_ledgers(where)) == spent(ledgers)
    with pytest.raises(InvalidValueError, match="location="):
        open_ledgers({"Aarhus": where["Aarhus"]})
    with pytest.raises(InvalidValueError, match="location='a URL'"):
        open_ledgers(where["Aarhus"])


def test_a_relative_folder_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ledgers = open_ledgers("ledgers")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    ledgers.charge_round(releases(), run_id="run", round=1)
    assert spent(open_ledgers(tmp_path / "ledgers")) == spent(ledgers)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_later_runs_may_have_fewer_sites_and_others(tmp_path: Path) -> None:
    open_ledgers(tmp_path).charge_round(releases(), run_id="run", round=1)
    events = {"Cork": STEPS["Cork"], "Dublin": STEPS["Cork"]}
    later = open_ledgers(tmp_path, events)
    later.charge_round(releases(events), run_id="later", round=1)
    assert spent(later) == {"Cork": [STEPS["Cork"].repeated(2)], "Dublin": [STEPS["Cork"]]}
    with pytest.raises(InvalidValueError, match="site='Aarhus': expected one of 'Cork', 'Dublin'"):
        later.ledger("Aarhus")


def test_a_ledger_that_was_rolled_back_or_removed(tmp_path: Path) -> None:
    ledgers = open_ledgers(tmp_path)
    old = {path: path.read_bytes() for path in tmp_path.iterdir()}
    ledgers.charge_round(releases(), run_id="run", round=1)
    kept = ledgers.anchors
    place = Path(ledgers.ledger("Bergen")._database.path or "")
    place.write_bytes(old[place])
    with pytest.raises(LedgerError, match=r"Site 'Bergen' .*cannot be opened"):
        open_ledgers(tmp_path)
    anchor_beside(place).write_bytes(old[anchor_beside(place)])
    open_ledgers(tmp_path)  # nobody here knows better
    with pytest.raises(LedgerError, match=r"Site 'Bergen' .*cannot be opened"):
        open_ledgers(tmp_path, anchors=kept)
    open_ledgers(tmp_path, anchors={site: kept[site] for site in ("Aarhus", "Cork")})


def test_what_a_resumed_run_asks(tmp_path: Path) -> None:
    ledgers = open_ledgers(tmp_path)
    assert (ledgers.charged_rounds("run"), ledgers.last_charged) == (set(), None)
    ledgers.charge_round(releases(), run_id="run", round=1)
    ledgers.charge("Cork", releases()["Cork"], run_id="run", round=2)
    assert ledgers.charged_rounds("run") == {1}
    assert ledgers.last_charged == SetClock().time


@pytest.mark.e2e
def test_a_crash_between_two_sites_leaves_spent_what_was_trained(tmp_path: Path) -> None:
    """Killed after one charge: nothing has trained, one site has paid; the next try pays for all."""
    code = f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.budget import test_record_ledgers as case
ledgers = case.open_ledgers({str(tmp_path)!r})
ledgers.charge_round(case.releases(), run_id="run", round=1)
bergen = ledgers.ledger("Bergen")
bergen.authorise = lambda *values, **more: os._exit(9)
ledgers.charge_round(case.releases(), run_id="run", round=2)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    ledgers = open_ledgers(tmp_path)
    assert [len(ledgers.ledger(site)._state.charges) for site in SITES] == [2, 1, 1]
    assert ledgers.charged_rounds("run") == {1}
    ledgers.charge_round(releases(), run_id="run", round=2)
    assert spent(ledgers) == {
        "Aarhus": [STEPS["Aarhus"].repeated(3)],
        "Bergen": [STEPS["Bergen"].repeated(2)],
        "Cork": [STEPS["Cork"].repeated(2)],
    }


# What they say


def test_a_record_has_the_largest_of_the_sites(tmp_path: Path) -> None:
    ledgers = open_ledgers(tmp_path)
    for round in range(1, 4):
        ledgers.charge_round(releases(), run_id="run", round=round)
    account = ledgers.account()
    alone = [epsilon([STEPS[site].repeated(3)], DELTA) for site in SITES]
    assert [site.epsilon for site in account.sites] == alone
    assert account.epsilon == max(alone) == parallel_guarantee([Guarantee(each, DELTA) for each in alone]).epsilon
    assert account.epsilon < sum(alone)
    assert [(site.charges, site.steps) for site in account.sites] == [(3, 60), (3, 60), (3, 15)]
    assert account.epsilon_certified == max(site.epsilon_certified for site in account.sites)
    assert all(site.epsilon <= site.epsilon_certified for site in account.sites)
    assert account.epsilon_certified == pytest.approx(4.0, rel=1e-9)  # it has seen one year
    assert ledgers.account("week").epsilon_certified == pytest.approx(2.0, rel=1e-9)
    assert {(site.accountant, site.mode) for site in account.sites} == {("pld", "renyi")}


def test_the_worst_week_of_each_site(tmp_path: Path) -> None:
    clock = SetClock()
    ledgers = open_ledgers(tmp_path, clock=clock)
    assert ledgers.account("week").sites[0].key is None
    assert ledgers.account("week").epsilon == 0.0
    for round, week in enumerate(("2026-W10", "2026-W11", "2026-W11", "2026-W12"), start=1):
        clock.set_week(week)
        ledgers.charge_round(releases(), run_id="run", round=round)
    worst = ledgers.account("week")
    assert [(site.key, site.charges) for site in worst.sites] == [("2026-W11", 2)] * 3
    assert worst.epsilon == max(epsilon([STEPS[site].repeated(2)], DELTA) for site in SITES)


def test_the_certificate_of_a_week_is_that_of_any_week(tmp_path: Path) -> None:
    """A year of 52 weeks gives each more than a year of 53 does, whichever has spent more."""
    clock = SetClock()
    ledgers = open_ledgers(tmp_path, FULL, clock=clock, budget=Budget(delta=DELTA, year=8.0, week="even"))
    for round, week in enumerate(("2026-W52", "2026-W53", "2026-W53", "2027-W02"), start=1):
        clock.set_week(week)
        ledgers.charge_round(releases(FULL), run_id="run", round=round)
    worst = ledgers.account("week")
    assert worst.sites[0].key == "2026-W53"
    rule = ledgers.ledger("Aarhus").definition.rules["week"]
    later = ledgers.ledger("Aarhus").last_week
    assert worst.sites[0].epsilon_certified == rule.limit_epsilon(later, DELTA)
    assert worst.sites[0].epsilon_certified > rule.limit_epsilon(later.plus(-10), DELTA)


def test_a_site_without_an_allowance_certifies_nothing(tmp_path: Path) -> None:
    budgets = {**dict.fromkeys(SITES, BUDGET), "Bergen": Budget(delta=DELTA, week=2.0)}
    ledgers = open_ledgers(tmp_path, budget=budgets)
    ledgers.charge_round(releases(), run_id="run", round=1)
    assert ledgers.account().epsilon_certified == math.inf
    assert ledgers.account().epsilon < 10.0
    assert ledgers.account("week").epsilon_certified == pytest.approx(2.0, rel=1e-9)
    assert ledgers.person(SITES).certified is None
    assert ledgers.person(["Aarhus", "Cork"]).certified is not None


def test_an_epsilon_beyond_all_bounds_is_infinite(tmp_path: Path) -> None:
    events = {"a": Gaussian(1e-5, count=10**6), "b": Gaussian(20.0)}
    ledgers = open_ledgers(tmp_path, events, budget=Budget(delta=DELTA))
    ledgers.charge_round(releases(events), run_id="run", round=1)
    assert ledgers.account().epsilon == math.inf


def test_a_person_in_several_sites_is_the_root_of_the_sum_of_squares(tmp_path: Path) -> None:
    ledgers = open_ledgers(tmp_path, FULL)
    assert {ledgers.ledger(site).definition.mode for site in SITES} == {"gaussian"}
    for round in (1, 2):
        ledgers.charge_round(releases(FULL), run_id="run", round=round)
    squares = [6 / noise**2 for noise in (20.0, 30.0)]
    person = ledgers.person(["Bergen", "Aarhus"])
    assert person.epsilon == pytest.approx(gdp_epsilon(math.sqrt(sum(squares)), DELTA), rel=1e-12)
    assert (person.sites, person.records, person.delta) == (("Bergen", "Aarhus"), (1, 1), DELTA)
    several = ledgers.person(["Bergen", "Aarhus"], records=[2, 1])
    expected = gdp_epsilon(math.sqrt(squares[0] + 4 * squares[1]), DELTA)
    assert several.epsilon == pytest.approx(expected, rel=1e-12)
    assert ledgers.person(["Aarhus"]).epsilon == ledgers.account().sites[0].epsilon
    assert ledgers.person(SITES).epsilon > person.epsilon > ledgers.account().epsilon
    assert person.certified == sequential_guarantee(
        [Guarantee(site.epsilon_certified, DELTA) for site in ledgers.account().sites[:2]]
    )
    assert several.certified is not None
    assert person.certified is not None
    assert several.certified.epsilon > person.certified.epsilon
    assert several.epsilon <= several.certified.epsilon


def test_a_person_in_several_sites_with_sampled_steps_is_their_composition(tmp_path: Path) -> None:
    ledgers = open_ledgers(tmp_path)
    ledgers.charge_round(releases(), run_id="run", round=1)
    person = ledgers.person(["Aarhus", "Cork"], delta=1e-5)
    assert person.epsilon == person_epsilon(
        [[STEPS["Aarhus"]], [STEPS["Cork"]]], 1e-5, neighboring_relation="add_remove"
    )
    assert person.epsilon == epsilon([STEPS["Aarhus"], STEPS["Cork"]], 1e-5, neighboring_relation="add_remove")
    with pytest.raises(UnsupportedError, match="records=2"):
        ledgers.person(["Aarhus", "Cork"], records=[1, 2])


@pytest.mark.parametrize(
    ("sites", "changes"),
    [
        ([], {}),
        (["Dublin"], {}),
        (["Cork", "Cork"], {}),
        ("Cork", {}),
        (["Cork"], {"records": [1, 1]}),
        (["Cork"], {"records": [True]}),
        (["Cork"], {"records": [0]}),
        (["Cork"], {"delta": math.nan}),
        (["Cork"], {"delta": 0.0}),
    ],
)
def test_a_person_that_makes_no_sense(tmp_path: Path, sites: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError):
        open_ledgers(tmp_path).person(sites, **changes)


def test_replace_one_doubles_the_distance_of_a_record(tmp_path: Path) -> None:
    ledgers = open_ledgers(tmp_path, FULL, neighboring_relation="replace_one")
    ledgers.charge_round(releases(FULL), run_id="run", round=1)
    assert ledgers.account().sites[0].epsilon == epsilon([FULL["Aarhus"]], DELTA, neighboring_relation="replace_one")
    assert ledgers.person(["Aarhus"]).epsilon == ledgers.account().sites[0].epsilon
    with pytest.raises(LedgerError, match="neighboring_relation is 'replace_one' in the ledger"):
        open_ledgers(tmp_path, FULL)


def test_a_simulation_takes_seeded_noise(tmp_path: Path) -> None:
    open_ledgers(tmp_path, simulation=True).charge_round(releases(), run_id="run", round=1, rng="seeded")
    with pytest.raises(LedgerError, match="simulation is True in the ledger"):
        open_ledgers(tmp_path)
    assert isinstance(open_ledgers(tmp_path, simulation=True).ledger("Cork"), Ledger)
