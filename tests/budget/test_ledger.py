"""What every ledger promises, in either mode: one conformance class."""

from __future__ import annotations

import dataclasses
import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fedDP.accounting import FixedSize, FullParticipation, Gaussian, Poisson, epsilon
from fedDP.accounting.events import Sampling
from fedDP.accounting.rdp import rdp_at, rdp_budget
from fedDP.budget import Budget, BudgetExceeded, IsoWeek, Ledger, SimulatedClock
from fedDP.budget.policy import Mode, WindowName, WindowRule
from fedDP.errors import GrantError, InvalidValueError, LedgerError, UnsupportedError

from .ledgers import START, Run, SetClock, authorise, noise_for, without_sync
from .places import Place, count_rows

DELTA = 1e-6
ROUNDS = 7


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    without_sync(monkeypatch)


class LedgerConformance:
    """A ledger of one mode, made for rounds of one kind."""

    mode: ClassVar[Mode]
    sampling: ClassVar[Sampling]

    @pytest.fixture
    def clock(self) -> SetClock:
        return SetClock()

    def open(self, place: Place, clock: Any, budget: Budget, noise: float = 20.0, **changes: Any) -> Ledger:
        plan = [Gaussian(noise, sampling=self.sampling, count=ROUNDS)]
        values: dict[str, Any] = {"unit": "patient", "mode": self.mode, "plan": plan, "clock": clock, **changes}
        return Ledger.open(place.url, budget=budget, **values)

    def run(self, place: Place, clock: Any, budget: Budget, rounds: int = ROUNDS, **changes: Any) -> Run:
        """A run whose noise was calibrated for so many rounds of the budget."""
        noise = noise_for(rounds, budget, self.mode, self.sampling)
        return Run(self.open(place, clock, budget, noise, **changes), Gaussian(noise, sampling=self.sampling))

    # What is granted

    @pytest.mark.parametrize(
        "allowances",
        [{"week": 0.5}, {"year": 0.5}, {"lifetime": 0.5}, {"trailing": 0.5}, {"year": 0.5, "week": "even"}],
    )
    @pytest.mark.parametrize("rounds", [1, 3, 20])
    def test_a_budget_made_for_n_rounds_grants_exactly_n(
        self, place: Place, clock: SetClock, allowances: dict[str, Any], rounds: int
    ) -> None:
        run = self.run(place, clock, Budget(delta=DELTA, **allowances), rounds)
        refusal = run.charge_until_refused()
        assert len(run.grants) == rounds
        assert [grant.seq for grant in run.grants] == list(range(1, rounds + 1))
        assert count_rows(place, "charge") == rounds
        with pytest.raises(BudgetExceeded):  # and it stays so
            run.charge()
        assert refusal.spent <= refusal.allowance * (1 + 1e-9) or self.mode == "renyi"

    def test_a_grant_carries_what_was_charged(self, place: Place, clock: SetClock) -> None:
        ledger = self.open(place, clock, Budget(delta=DELTA, year=5.0))
        event = Gaussian(20.0, sampling=self.sampling)
        grant = ledger.authorise(
            event, run_id="r", round=3, purpose="train", clip_norm=0.5, denominator=12, max_weight=2.0
        )
        assert (grant.run_id, grant.round, grant.purpose, grant.attempt, grant.seq) == ("r", 3, "train", 1, 1)
        assert (grant.noise_multiplier, grant.clip_norm, grant.denominator, grant.max_weight) == (20.0, 0.5, 12.0, 2.0)
        assert grant.event == event
        assert grant.sampling == self.sampling
        assert grant.week == IsoWeek(2026, 10)
        assert not grant.used

    def test_a_refused_round_does_not_stop_a_cheaper_one(self, place: Place, clock: SetClock) -> None:
        run = self.run(place, clock, Budget(delta=DELTA, year=0.5))
        run.charge()
        with pytest.raises(BudgetExceeded):
            authorise(run.ledger, Gaussian(run.event.noise_multiplier / 10, sampling=self.sampling), round=99)
        run.charge()
        assert count_rows(place) == 3

    def test_runs_and_purposes_share_the_budget(self, place: Place, clock: SetClock) -> None:
        run = self.run(place, clock, Budget(delta=DELTA, year=0.5), rounds=3)
        run.charge()
        run.charge(purpose="evaluate")
        run.charge(run_id="another")
        with pytest.raises(BudgetExceeded):
            run.charge(run_id="a third")

    def test_no_allowance_no_refusal_but_every_charge_is_kept(self, place: Place, clock: SetClock) -> None:
        run = Run(self.open(place, clock, Budget(delta=DELTA)), Gaussian(0.5, sampling=self.sampling))
        for _ in range(10):
            run.charge()
        (lifetime,) = [status for status in run.ledger.windows() if status.window == "lifetime"]
        assert (lifetime.charges, lifetime.allowance_epsilon, lifetime.spent_fraction) == (10, None, None)
        assert lifetime.spent_epsilon == epsilon([dataclasses.replace(run.event, count=10)], DELTA)

    # Refusals

    def refusal(self, place: Place, clock: SetClock, budget: Budget) -> BudgetExceeded:
        return self.run(place, clock, budget).charge_until_refused()

    def test_a_full_week_resumes_next_monday(self, place: Place, clock: SetClock) -> None:
        refusal = self.refusal(place, clock, Budget(delta=DELTA, week=0.5))
        assert (refusal.window, refusal.key, refusal.resumes) == ("week", "2026-W10", "2026-03-09")
        assert "It would fit from 2026-03-09 on." in str(refusal)

    def test_a_full_last_week_resumes_in_the_next_iso_year(self, place: Place, clock: SetClock) -> None:
        clock.set_week("2026-W53")
        refusal = self.refusal(place, clock, Budget(delta=DELTA, week=0.5))
        assert (refusal.key, refusal.resumes) == ("2026-W53", "2027-01-04")

    def test_a_full_year_resumes_in_the_next_iso_year(self, place: Place, clock: SetClock) -> None:
        refusal = self.refusal(place, clock, Budget(delta=DELTA, year=0.5, trailing=5.0))
        assert (refusal.window, refusal.key, refusal.resumes) == ("year", "2026", "2027-01-04")

    def test_a_full_year_with_its_trailing_window_resumes_when_both_do(self, place: Place, clock: SetClock) -> None:
        refusal = self.refusal(place, clock, Budget(delta=DELTA, year=0.5))
        assert (refusal.window, refusal.key) == ("year", "2026")
        assert refusal.resumes == IsoWeek(2026, 10).plus(53).monday.date().isoformat()

    def test_a_full_lifetime_never_resumes(self, place: Place, clock: SetClock) -> None:
        refusal = self.refusal(place, clock, Budget(delta=DELTA, lifetime=0.5, week=0.5))
        assert (refusal.window, refusal.key, refusal.resumes) == ("lifetime", "lifetime", None)
        assert "It will never fit this budget." in str(refusal)

    def test_a_release_that_no_empty_window_can_take_never_resumes(self, place: Place, clock: SetClock) -> None:
        ledger = self.open(place, clock, Budget(delta=DELTA, week=0.5))
        with pytest.raises(BudgetExceeded) as caught:
            authorise(ledger, Gaussian(0.01))
        assert caught.value.resumes is None
        assert caught.value.spent == 0.0
        assert count_rows(place) == 1

    def test_a_refusal_states_its_numbers(self, place: Place, clock: SetClock) -> None:
        run = self.run(place, clock, Budget(delta=DELTA, week=0.5))
        refusal = run.charge_until_refused()
        charged = dataclasses.replace(run.event, count=ROUNDS)
        assert refusal.spent == epsilon([charged], DELTA)
        assert refusal.asked >= epsilon([charged, run.event], DELTA) * (1.0 - 1e-12)
        assert refusal.allowance == pytest.approx(0.5, rel=1e-9)
        assert refusal.spent <= refusal.allowance < refusal.asked
        assert "week 2026-W10" in str(refusal)

    def test_the_same_window_is_named_after_reopening(self, place: Place, clock: SetClock) -> None:
        budget = Budget(delta=DELTA, year=0.5, week=0.5, lifetime=0.5)
        run = self.run(place, clock, budget)
        first = run.charge_until_refused()
        with pytest.raises(BudgetExceeded) as again:
            authorise(self.open(place, clock, budget), run.event, round=99)
        assert first.window == again.value.window == "lifetime"

    # Windows in time

    def test_a_new_week_has_its_own_allowance(self, place: Place, clock: SetClock) -> None:
        run = self.run(place, clock, Budget(delta=DELTA, week=0.5))
        for week in ("2026-W10", "2026-W11", "2026-W53", "2027-W01"):
            clock.set_week(week)
            refusal = run.charge_until_refused()
            assert refusal.key == week
        assert len(run.grants) == 4 * ROUNDS

    def test_weeks_together_never_exceed_the_year(self, place: Place, clock: SetClock) -> None:
        run = self.run(place, clock, Budget(delta=DELTA, year=1.0, week=0.5), rounds=3)
        spent = 0
        for week in range(10, 54):
            clock.set_week(f"2026-W{week}")
            refusal = run.charge_until_refused()
            spent = len(run.grants)
        assert refusal.window == "year"
        (year,) = [status for status in run.ledger.windows() if status.window == "year"]
        assert year.charges == spent
        assert year.spent_fraction is not None
        assert 0.8 < year.spent_fraction <= 1.0

    def test_an_even_year_of_53_weeks_grants_a_round_a_week(self, place: Place, clock: SetClock) -> None:
        budget = Budget(delta=DELTA, year=0.5, week="even")
        noise = noise_for(1, budget, self.mode, self.sampling, week="2026-W01")
        clock.set_week("2026-W01")
        run = Run(self.open(place, clock, budget, noise), Gaussian(noise, sampling=self.sampling))
        for week in range(1, 54):
            clock.set_week(f"2026-W{week:02d}")
            run.charge()
            with pytest.raises(BudgetExceeded) as caught:
                run.charge()
            assert caught.value.window == ("week" if week < 53 else "year")
        clock.set_week("2027-W01")
        run.charge()  # 2026-W01 has just left the trailing window

    def test_the_trailing_window_bounds_what_two_years_could_do_together(self, place: Place, clock: SetClock) -> None:
        run = self.run(place, clock, Budget(delta=DELTA, year=0.5))
        clock.set_week("2026-W50")
        run.charge_until_refused()
        clock.set_week("2027-W01")
        with pytest.raises(BudgetExceeded) as caught:
            run.charge()
        assert (caught.value.window, caught.value.key) == ("trailing", "2027-W01")
        assert caught.value.resumes == IsoWeek(2026, 50).plus(53).monday.date().isoformat()
        clock.time = IsoWeek(2026, 50).plus(53).monday - timedelta(seconds=1)
        with pytest.raises(BudgetExceeded):
            run.charge()
        clock.time += timedelta(seconds=1)
        run.charge()

    def test_a_round_is_charged_to_the_week_it_was_authorised_in(self, place: Place, clock: SetClock) -> None:
        run = self.run(place, clock, Budget(delta=DELTA, week=0.5))
        clock.set_week("2026-W10")
        grant = run.charge()
        clock.set_week("2026-W11")
        run.ledger.mark_released(grant)
        assert run.ledger.status("week", IsoWeek(2026, 10)).charges == 1
        assert run.ledger.status("week", IsoWeek(2026, 11)).charges == 0

    # Attempts

    def test_an_unused_grant_is_returned_again(self, place: Place, clock: SetClock) -> None:
        run = self.run(place, clock, Budget(delta=DELTA, year=0.5))
        grant = run.charge()
        assert run.charge(round=1) is grant
        same = authorise(run.ledger, run.event, clip_norm=1, denominator=10, round=1.0)
        assert same is grant
        assert count_rows(place, "charge") == 1

    @pytest.mark.parametrize("change", [{"clip_norm": 2.0}, {"denominator": 11.0}, {"max_weight": 2.0}])
    def test_other_numbers_for_a_granted_round_are_refused(
        self, place: Place, clock: SetClock, change: dict[str, float]
    ) -> None:
        run = self.run(place, clock, Budget(delta=DELTA, year=0.5))
        run.charge()
        with pytest.raises(LedgerError, match="granted with other numbers"):
            run.charge(round=1, **change)
        with pytest.raises(LedgerError, match="granted with other numbers"):
            authorise(run.ledger, Gaussian(99.0, sampling=self.sampling))
        assert count_rows(place, "charge") == 1

    def test_whole_and_float_noise_multipliers_are_the_same(self, place: Place, clock: SetClock) -> None:
        ledger = self.open(place, clock, Budget(delta=DELTA, year=5.0))
        grant = authorise(ledger, Gaussian(20, sampling=self.sampling))
        assert authorise(ledger, Gaussian(20.0, sampling=self.sampling)) is grant
        other = authorise(ledger, Gaussian(20, sampling=self.sampling), round=2)
        assert other.event == grant.event
        week = ledger.status("week", IsoWeek(2026, 10))
        assert week.charges == 2
        assert week.spent_epsilon == epsilon([Gaussian(20.0, sampling=self.sampling, count=2)], DELTA)

    def test_a_used_grant_is_not_given_again(self, place: Place, clock: SetClock) -> None:
        run = self.run(place, clock, Budget(delta=DELTA, year=0.5), rounds=2)
        first = run.charge()
        first.use()
        second = run.charge(round=1)
        assert (second.attempt, second.seq) == (2, 3)
        assert count_rows(place, "abandoned") == 1
        with pytest.raises(LedgerError, match="abandoned already"):
            run.ledger.mark_released(first)
        with pytest.raises(BudgetExceeded):  # the first attempt stays spent
            run.charge()

    def test_a_grant_draws_noise_once(self, place: Place, clock: SetClock) -> None:
        grant = self.run(place, clock, Budget(delta=DELTA, year=0.5)).charge()
        copy = dataclasses.replace(grant)
        grant.use()
        assert grant.used
        for each in (grant, copy):
            with pytest.raises(GrantError, match="used already"):
                each.use()

    def test_a_grant_of_another_process_draws_no_noise(
        self, place: Place, clock: SetClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = self.run(place, clock, Budget(delta=DELTA, year=0.5), rounds=2)
        grant = run.charge()
        monkeypatch.setattr("os.getpid", lambda: 1)  # as after a fork
        with pytest.raises(GrantError, match="another process"):
            grant.use()
        with pytest.raises(GrantError, match="cannot be pickled"):
            pickle.dumps(grant)
        again = run.charge(round=1)
        assert (again is grant, again.attempt) == (False, 2)

    def test_a_charge_of_a_dead_process_stays_spent(self, place: Place, clock: SetClock) -> None:
        budget = Budget(delta=DELTA, year=0.5)
        run = self.run(place, clock, budget, rounds=3)
        run.charge()
        reopened = Run(self.open(place, clock, budget), run.event)  # knows nothing of the other's grants
        retry = reopened.charge()
        assert retry.attempt == 2
        assert count_rows(place, "abandoned") == 1
        assert reopened.charge().round == 2
        with pytest.raises(BudgetExceeded):
            reopened.charge()
        assert count_rows(place, "charge") == 3

    def test_at_most_one_attempt_is_released(self, place: Place, clock: SetClock) -> None:
        budget = Budget(delta=DELTA, year=0.5)
        run = self.run(place, clock, budget)
        first = run.charge()
        second = Run(self.open(place, clock, budget), run.event).charge()
        with pytest.raises(LedgerError, match="abandoned already"):
            run.ledger.mark_released(first)
        other = self.open(place, clock, budget)
        other.mark_released(second)
        for ledger in (run.ledger, other, self.open(place, clock, budget)):
            with pytest.raises(LedgerError, match="released already"):
                ledger.mark_released(second)
            with pytest.raises(LedgerError, match="was released already"):
                authorise(ledger, run.event)
        assert count_rows(place, "released") == 1

    def test_a_mark_refunds_nothing(self, place: Place, clock: SetClock) -> None:
        run = self.run(place, clock, Budget(delta=DELTA, year=0.5))
        before: list[float] = []
        for _ in range(ROUNDS):
            grant = run.charge()
            before.append(run.ledger.windows()[-1].spent_fraction or run.ledger.windows()[0].spent_epsilon)
            run.ledger.mark_released(grant)
        assert before == sorted(set(before))
        with pytest.raises(BudgetExceeded):
            run.charge()

    def test_only_the_ledgers_own_grants_are_marked(self, place: Place, clock: SetClock) -> None:
        budget = Budget(delta=DELTA, year=0.5)
        grant = self.run(place, clock, budget).charge()
        other = self.run(place.another(), clock, budget)
        with pytest.raises(LedgerError, match="is not a charge"):
            other.ledger.mark_released(grant)
        other.charge(run_id="another")
        with pytest.raises(LedgerError, match="is not a charge"):
            other.ledger.mark_released(grant)

    # What is refused with nothing written

    @pytest.mark.parametrize(
        "change",
        [
            {"clip_norm": 0.0},
            {"clip_norm": math.nan},
            {"clip_norm": True},
            {"denominator": 0.0},
            {"denominator": math.inf},
            {"max_weight": -1.0},
            {"run_id": ""},
            {"run_id": 5},
            {"run_id": "a\x00b"},
            {"run_id": "\ud800"},
            {"purpose": ""},
            {"purpose": None},
            {"round": -1},
            {"round": True},
            {"round": 1.5},
            {"round": "1"},
            {"round": 2**70},
        ],
    )
    def test_a_charge_outside_the_ranges(self, place: Place, clock: SetClock, change: dict[str, Any]) -> None:
        budget = Budget(delta=DELTA, year=5.0)
        ledger = self.open(place, clock, budget)
        with pytest.raises(InvalidValueError, match=f"{next(iter(change))}="):
            authorise(ledger, Gaussian(20.0, sampling=self.sampling), **change)
        assert count_rows(place) == 1
        self.open(place, clock, budget)  # and it can still be read

    @pytest.mark.parametrize("event", ["gaussian", None, 1.0])
    def test_an_event_that_is_no_gaussian(self, place: Place, clock: SetClock, event: Any) -> None:
        ledger = self.open(place, clock, Budget(delta=DELTA, year=5.0))
        with pytest.raises(LedgerError, match="expected a Gaussian event"):
            authorise(ledger, event)
        assert count_rows(place) == 1

    def test_noise_so_small_that_its_cost_overflows(self, place: Place, clock: SetClock) -> None:
        ledger = self.open(place, clock, Budget(delta=DELTA, year=5.0))
        with pytest.raises(InvalidValueError, match="larger noise multiplier"):
            authorise(ledger, Gaussian(1e-200))
        assert count_rows(place) == 1

    def test_fixed_size_cohorts(self, place: Place, clock: SetClock) -> None:
        for budget in (Budget(delta=DELTA, year=5.0), Budget(delta=DELTA)):
            ledger = self.open(place.another(), clock, budget)
            with pytest.raises(UnsupportedError, match=r"fixed-size|sampled rounds"):
                authorise(ledger, Gaussian(20.0, sampling=FixedSize(5, 10)))
            assert ledger.head[0] == 0

    def test_seeded_noise_on_a_real_ledger(self, place: Place, clock: SetClock) -> None:
        ledger = self.open(place, clock, Budget(delta=DELTA, year=5.0))
        with pytest.raises(LedgerError, match="Drop the seed"):
            authorise(ledger, Gaussian(20.0, sampling=self.sampling), rng="seeded")
        with pytest.raises(LedgerError, match="rng="):
            authorise(ledger, Gaussian(20.0, sampling=self.sampling), rng="random")
        assert count_rows(place) == 1

    def test_seeded_noise_on_a_simulations_ledger(self, place: Place, clock: SetClock) -> None:
        ledger = self.open(place, clock, Budget(delta=DELTA, year=5.0), simulation=True)
        assert authorise(ledger, Gaussian(20.0, sampling=self.sampling), rng="seeded").seq == 1

    # Clocks

    def test_a_clock_that_went_back_is_refused(self, place: Place, clock: SetClock) -> None:
        run = self.run(place, clock, Budget(delta=DELTA, week=0.5))
        run.charge()
        clock.time = START - timedelta(minutes=5, seconds=1)
        with pytest.raises(LedgerError, match="The clock went back"):
            run.charge()
        assert count_rows(place) == 2

    def test_a_mark_does_not_need_a_right_clock(self, place: Place, clock: SetClock) -> None:
        run = self.run(place, clock, Budget(delta=DELTA, week=0.5))
        grant = run.charge()
        clock.time = START - timedelta(days=30)
        run.ledger.mark_released(grant)
        clock.time = START
        run.charge()

    def test_simulated_weeks_pass_with_the_rounds(self, place: Place) -> None:
        clock = SimulatedClock(rounds_per_week=2, start="2026-W52")
        run = self.run(place, clock, Budget(delta=DELTA, week=0.5), rounds=2)
        assert run.ledger.last_week.key == "2026-W52"
        assert run.ledger.last_charged is None
        assert [run.charge().week.key for _ in range(5)] == ["2026-W52"] * 2 + ["2026-W53"] * 2 + ["2027-W01"]
        assert run.ledger.last_charged == clock.now(5)

    def test_simulated_runs_may_share_a_week_but_not_go_back(self, place: Place) -> None:
        run = self.run(place, SimulatedClock(rounds_per_week=3, start="2026-W10"), Budget(delta=DELTA, week=0.5))
        run.charge()
        run.charge()
        run.charge(run_id="another", round=1)
        run.charge(round=4)
        with pytest.raises(LedgerError, match="The clock went back"):
            run.charge(run_id="another", round=2)

    @pytest.mark.parametrize("kinds", [("system", "simulated"), ("simulated", "system")])
    def test_a_clock_of_another_kind_cannot_charge_it(self, place: Place, kinds: Any) -> None:
        first, second = (SetClock(kind=kind) for kind in kinds)
        self.open(place, first, Budget(delta=DELTA, year=0.5))
        with pytest.raises(LedgerError, match=f"clock is '{kinds[0]}' in the ledger, '{kinds[1]}' was asked"):
            self.open(place, second, Budget(delta=DELTA, year=0.5))

    # Reopening

    @pytest.mark.parametrize(
        "change",
        [
            {"unit": "customer"},
            {"population": "ward 7"},
            {"neighboring_relation": "add_remove"},
            {"simulation": True},
            {"budget": Budget(delta=1e-5, year=0.5)},
            {"budget": Budget(delta=DELTA, year=0.6)},
            {"budget": Budget(delta=DELTA, year=0.5, week="even")},
            {"budget": Budget(delta=DELTA, year=0.5, trailing=0.6)},
            {"mode": "other"},
        ],
    )
    def test_another_definition_is_refused(self, place: Place, clock: SetClock, change: dict[str, Any]) -> None:
        if change == {"mode": "other"}:
            change = {"mode": "renyi" if self.mode == "gaussian" else "gaussian", "plan": None}
        budget = Budget(delta=DELTA, year=0.5)
        self.open(place, clock, budget)
        with pytest.raises(LedgerError, match=f"created with other terms: {next(iter(change))}"):
            self.open(place, clock, **{"budget": budget, **change})
        assert count_rows(place) == 1

    def test_it_is_reopened_as_it_was(self, place: Place, clock: SetClock) -> None:
        budget = Budget(delta=DELTA, year=0.5, week="even", lifetime=3)
        run = self.run(place, clock, budget, rounds=1)
        run.charge()
        reopened = self.open(place, clock, budget, mode="auto", plan=None)
        assert reopened.definition == run.ledger.definition
        assert list(reopened.definition.rules) == list(run.ledger.definition.rules)
        assert reopened.windows() == run.ledger.windows()
        assert reopened.head == run.ledger.head
        assert Ledger.load(place.url).windows() == run.ledger.windows()

    def test_a_loaded_ledger_is_only_looked_at(self, place: Place, clock: SetClock) -> None:
        run = self.run(place, clock, Budget(delta=DELTA, year=0.5))
        run.charge()
        with pytest.raises(LedgerError, match="loaded to look at"):
            authorise(Ledger.load(place.url), run.event, round=2)
        assert count_rows(place) == 2

    def test_two_open_ledgers_see_each_others_charges(self, place: Place, clock: SetClock) -> None:
        budget = Budget(delta=DELTA, year=0.5)
        run = self.run(place, clock, budget, rounds=4)
        other = Run(self.open(place, clock, budget), run.event, run_id="other")
        for each in (run, other, run, other):
            each.charge()
        for each in (run, other):
            with pytest.raises(BudgetExceeded):
                each.charge()

    def test_threads_share_a_ledger(self, place: Place, clock: SetClock) -> None:
        run = self.run(place, clock, Budget(delta=DELTA, year=0.5), rounds=10)

        def charge(round: int) -> bool:
            try:
                run.ledger.mark_released(authorise(run.ledger, run.event, round=round))
            except BudgetExceeded:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(charge, range(1, 31))) == 10
        assert count_rows(place, "charge") == count_rows(place, "released") == 10

    # What is shown

    def test_status_is_the_epsilon_of_what_was_charged(self, place: Place, clock: SetClock) -> None:
        ledger = self.open(place, clock, Budget(delta=DELTA, year=5.0, week=3.0))
        small, large = Gaussian(20.0, sampling=self.sampling), Gaussian(30.0, sampling=self.sampling)
        for round, (week, event) in enumerate(
            [("2026-W10", small), ("2026-W10", large), ("2026-W53", small), ("2027-W01", small)]
        ):
            clock.set_week(week)
            authorise(ledger, event, round=round)
        expected: dict[tuple[WindowName, str], list[Gaussian]] = {
            ("week", "2026-W10"): [small, large],
            ("week", "2026-W53"): [small],
            ("week", "2027-W01"): [small],
            ("year", "2026"): [small, large, small],
            ("year", "2027"): [small],
            ("trailing", "2027-W01"): [small, large, small, small],
            ("lifetime", "lifetime"): [small, large, small, small],
        }
        found = {(status.window, status.key): status for status in ledger.windows()}
        assert list(found) == list(expected)
        for key, events in expected.items():
            assert found[key].charges == len(events)
            assert found[key].spent_epsilon == pytest.approx(epsilon(events, DELTA), rel=1e-12)
        assert found["year", "2026"].allowance_epsilon == pytest.approx(5.0, rel=1e-9)
        assert found["week", "2026-W53"].allowance_epsilon == pytest.approx(3.0, rel=1e-9)
        assert found["lifetime", "lifetime"].allowance_epsilon is None

    def test_the_fraction_is_additive(self, place: Place, clock: SetClock) -> None:
        run = self.run(place, clock, Budget(delta=DELTA, week=0.5), rounds=8)
        fractions = []
        for _ in range(8):
            run.charge()
            fractions.append(run.ledger.status("week", IsoWeek(2026, 10)).spent_fraction)
        assert fractions == pytest.approx([count / 8 for count in range(1, 9)], rel=1e-6)
        assert fractions[-1] is not None
        assert fractions[-1] <= 1.0

    def test_an_empty_ledger_shows_its_lifetime(self, place: Place, clock: SetClock) -> None:
        ledger = self.open(place, clock, Budget(delta=DELTA, lifetime=0.5))
        (status,) = ledger.windows()
        assert (status.window, status.spent_epsilon, status.spent_fraction, status.charges) == ("lifetime", 0, 0, 0)
        assert ledger.certified_epsilon() == {"lifetime": pytest.approx(0.5, rel=1e-9)}


class TestGaussian(LedgerConformance):
    mode = "gaussian"
    sampling = FullParticipation()

    def test_sampled_rounds_are_refused_with_nothing_written(self, place: Place, clock: SetClock) -> None:
        for budget in (Budget(delta=DELTA, year=0.5), Budget(delta=DELTA)):
            ledger = self.open(place.another(), clock, budget)
            with pytest.raises(UnsupportedError, match="gaussian mode cannot account for sampled rounds"):
                authorise(ledger, Gaussian(100.0, sampling=Poisson(0.5)))
            assert ledger.head[0] == 0

    def test_a_year_of_weekly_rounds_has_the_documented_noise(self) -> None:
        budget = Budget(delta=DELTA, year=0.5)
        assert noise_for(52, budget, "gaussian") == pytest.approx(58.10, abs=0.01)
        assert noise_for(520, budget, "gaussian") == pytest.approx(183.74, abs=0.01)

    def test_a_budget_too_small_for_renyi_is_reopened_without_a_plan(self, place: Place, clock: SetClock) -> None:
        budget = Budget(delta=DELTA, year=0.001)
        self.open(place, clock, budget, mode="auto")
        assert self.open(place, clock, budget, mode="auto", plan=None).definition.mode == "gaussian"

    def test_noise_chosen_along_the_way_stays_within_the_allowance(self, place: Place, clock: SetClock) -> None:
        """The filter holds however later rounds are chosen: the exact epsilon of all grants is at most the budget."""
        ledger = self.open(place, clock, Budget(delta=DELTA, year=0.5))
        granted = []
        for round in range(60):
            event = Gaussian(20.0 + 997.0 * round % 101.0)
            try:
                granted.append(authorise(ledger, event, round=round).event)
            except BudgetExceeded:
                continue
        assert 0 < len(granted) < 60
        assert 0.49 < epsilon([event for event in granted if event], DELTA) <= 0.5


class TestRenyi(LedgerConformance):
    mode = "renyi"
    sampling = Poisson(0.1)

    def test_poisson_under_replace_one_is_refused_with_nothing_written(self, place: Place, clock: SetClock) -> None:
        for budget in (Budget(delta=DELTA, year=0.5), Budget(delta=DELTA)):
            changes: dict[str, Any] = {"neighboring_relation": "replace_one", "plan": None}
            ledger = self.open(place.another(), clock, budget, **changes)
            with pytest.raises(UnsupportedError, match="replace_one"):
                authorise(ledger, Gaussian(100.0, sampling=Poisson(0.5)))
            assert ledger.head[0] == 0

    def test_fixed_size_cohorts_are_charged_under_replace_one(self, place: Place, clock: SetClock) -> None:
        event = Gaussian(40.0, sampling=FixedSize(5, 100))
        plan = [dataclasses.replace(event, count=200)]
        budget = Budget(delta=DELTA, year=0.5)
        ledger = self.open(place, clock, budget, neighboring_relation="replace_one", plan=plan)
        rule = ledger.definition.rules["year"]
        assert isinstance(rule, WindowRule)
        order = rule.order
        grant = authorise(ledger, event)
        assert grant.sampling == FixedSize(5, 100)
        (year,) = [status for status in ledger.windows() if status.window == "year"]
        assert order is not None
        assert year.spent_fraction == pytest.approx(
            rdp_at(event, order, "replace_one") / rdp_budget(0.5, DELTA, order), rel=1e-9
        )

    def test_mixed_rounds_never_spend_more_than_the_allowance(self, place: Place, clock: SetClock) -> None:
        ledger = self.open(place, clock, Budget(delta=DELTA, year=0.5))
        granted = []
        for round in range(80):
            sampling: Sampling = Poisson((round % 7 + 1) / 50) if round % 5 else FullParticipation()
            event = Gaussian(3.0 + 97.0 * round % 13.0, sampling=sampling)
            try:
                granted.append(authorise(ledger, event, round=round).event)
            except BudgetExceeded:
                continue
        assert 0 < len(granted) < 80
        assert 0.4 < epsilon([event for event in granted if event], DELTA) <= 0.5

    def test_another_order_than_the_plans_only_grants_less(self, place: Place, clock: SetClock) -> None:
        """A ledger whose orders were chosen for other rounds is still sound, and grants no more."""
        budget = Budget(delta=DELTA, year=0.5)
        planned = self.run(place, clock, budget, rounds=9)
        other = Run(self.open(place.another(), clock, budget, plan=None), planned.event)
        planned.charge_until_refused()
        other.charge_until_refused()
        assert len(other.grants) <= len(planned.grants) == 9


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"unit": ""}, "unit="),
        ({"unit": 5}, "unit="),
        ({"population": ""}, "population="),
        ({"neighboring_relation": "swap"}, "neighboring_relation="),
        ({"mode": "exact"}, "mode="),
    ],
)
def test_a_definition_that_makes_no_sense_leaves_no_file(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        Ledger.open(
            str(tmp_path / "ledger.db"), **{"budget": Budget(delta=DELTA, year=0.5), "unit": "patient", **values}
        )
    assert not list(tmp_path.iterdir())
