"""What a ledger is, fixed for its whole life when it is created."""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fedDP.accounting import Gaussian, NeighboringRelation
from fedDP.accounting.events import sensitivity
from fedDP.budget.clock import ClockKind
from fedDP.budget.committed_plan import CommittedPlan, PlannedRelease
from fedDP.budget.enrolment_terms import EnrolmentTerms
from fedDP.budget.mode import explain_mode
from fedDP.budget.plan_limits import PlannedWindow, check_plan, planned_windows
from fedDP.budget.policy import CHECK_ORDER, Budget, Mode, WindowName, WindowRule, window_rules
from fedDP.budget.records import SCHEMA_VERSION, canonical_json
from fedDP.budget.weeks import IsoWeek
from fedDP.errors import InvalidValueError, LedgerError

Rule: TypeAlias = WindowRule | PlannedWindow

_LONGEST_TEXT = 1000  # a ledger is kept for ever, and read whole


@dataclass(frozen=True, kw_only=True)
class LedgerDefinition:
    """Row 0 of a ledger.

    Attributes:
        population: names the people that the ledger speaks of; one population and unit has one ledger.
        simulation: whether it may be charged by seeded runs, whose epsilon is nominal; a real ledger refuses them.
        mode_reason: why this mode, in words.
        rules: the windows with their fixed orders and allowances in units.
        plan: what a ledger in plan mode has committed to; its windows follow from it.
        enrolment: who was enrolled at creation; None where nobody keeps an enrolment.
    """

    ledger_id: str
    population: str | None
    unit: str
    neighboring_relation: NeighboringRelation
    mode: Mode
    mode_reason: str
    budget: Budget
    clock: ClockKind
    simulation: bool
    rules: dict[WindowName, Rule]
    plan: CommittedPlan | None = None
    enrolment: EnrolmentTerms | None = None

    @classmethod
    def create(
        cls,
        *,
        budget: Budget,
        unit: str,
        population: str | None,
        neighboring_relation: NeighboringRelation,
        mode: str,
        plan: Sequence[Gaussian | PlannedRelease] | None,
        exclusive: bool,
        clock: ClockKind,
        created: IsoWeek,
        simulation: bool,
        enrolment: EnrolmentTerms | None = None,
    ) -> LedgerDefinition:
        """Chooses the mode and the windows' orders from `plan`, which must not depend on data, or commits to it.

        Raises:
            InvalidValueError: for an unknown mode or relation, an empty unit, a budget that no order can certify, or a
                plan to commit to that exceeds the budget in any window.
            UnsupportedError: gaussian mode for a plan with sampled rounds.
        """
        check_text("unit", unit)
        if population is not None:
            check_text("population", population)
        if enrolment is not None and not isinstance(enrolment, EnrolmentTerms):
            raise InvalidValueError("enrolment", enrolment, "EnrolmentTerms")
        sensitivity(neighboring_relation)
        releases = [PlannedRelease.of(each) for each in plan or ()]
        for release in releases:
            check_text("purpose", release.purpose)
        chosen, reason = explain_mode(mode, plan, budget=budget, exclusive=exclusive)
        committed: CommittedPlan | None = None
        rules: dict[WindowName, Rule] = {}
        if chosen == "plan":
            committed = CommittedPlan.of(releases, carry_over=budget.carry_over == "cumulative")
            check_plan(committed, budget, neighboring_relation)
            rules.update(planned_windows(committed, neighboring_relation))
        else:
            events = [release.event for release in releases]
            rules.update(window_rules(budget, chosen, events, neighboring_relation, created))
        return cls(
            ledger_id=secrets.token_hex(16),
            population=population,
            unit=unit,
            neighboring_relation=neighboring_relation,
            mode=chosen,
            mode_reason=reason,
            budget=budget,
            clock=clock,
            simulation=simulation,
            rules=rules,
            plan=committed,
            enrolment=enrolment,
        )

    def to_json(self) -> str:
        """The text of row 0."""
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        fields["budget"] = dataclasses.asdict(self.budget)
        rules = [rule for rule in self.rules.values() if isinstance(rule, WindowRule)]  # a plan's follow from it
        fields["rules"] = {rule.name: rule.to_dict() for rule in rules}
        fields["plan"] = None if self.plan is None else self.plan.to_dict()
        fields["enrolment"] = None if self.enrolment is None else dataclasses.asdict(self.enrolment)
        return canonical_json({"schema_version": SCHEMA_VERSION, **fields})

    @classmethod
    def from_json(cls, text: str) -> LedgerDefinition:
        """Reads row 0.

        Raises:
            LedgerError: for another schema version or a definition that cannot be read.
        """
        try:
            fields: dict[str, Any] = json.loads(text)
            version = fields.pop("schema_version")
            if version != SCHEMA_VERSION:
                raise LedgerError(f"The ledger has schema version {version}; this fedDP reads {SCHEMA_VERSION}.")
            budget = fields["budget"] = Budget(**fields["budget"])
            if fields["enrolment"] is not None:
                fields["enrolment"] = EnrolmentTerms(**fields["enrolment"])
            rules = {name: WindowRule.from_dict(rule) for name, rule in fields["rules"].items()}
            fields["rules"] = {name: rules[name] for name in CHECK_ORDER if name in rules}  # JSON sorted them
            if fields["plan"] is not None:
                plan = CommittedPlan.from_dict(fields["plan"], carry_over=budget.carry_over == "cumulative")
                fields |= {"plan": plan, "rules": planned_windows(plan, fields["neighboring_relation"])}
            return cls(**fields)
        except (ValueError, TypeError, KeyError) as error:
            raise LedgerError(f"The ledger's definition cannot be read: {error}") from error

    def differences(
        self, wanted: Mapping[str, Any], *, mode: str, plan: Sequence[Gaussian | PlannedRelease] | None
    ) -> list[str]:
        """How this definition differs from what is asked: from the attributes in `wanted`, from `mode` unless that is
        "auto", and from `plan` where it has committed to one."""
        own = {name: getattr(self, name) for name in wanted}
        if mode != "auto":
            own["mode"], wanted = self.mode, {**wanted, "mode": mode}
        if self.plan is not None and plan:
            own["plan"], wanted = self.plan.sha256, {**wanted, "plan": CommittedPlan.of(plan).sha256}
        return [
            f"{name} is {value!r} in the ledger, {asked[name]!r} was asked"
            for values, asked in [(_flat(own), _flat(wanted))]
            for name, value in values.items()
            if value != asked[name]
        ]


def _flat(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes with the budget's own fields among them: ``budget.year``."""
    budget = {f"budget.{name}": value for name, value in dataclasses.asdict(attributes["budget"]).items()}
    return {**{name: value for name, value in attributes.items() if name != "budget"}, **budget}


def check_text(name: str, value: object) -> str:
    """Returns `value` if it is text that a database gives back as it was.

    Raises:
        InvalidValueError: for anything but non-empty printable text of at most 1000 characters.
    """
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        raise InvalidValueError(name, f"{value[:20]}...", f"at most {_LONGEST_TEXT} characters, not {len(value)}")
    if not isinstance(value, str) or not value or not value.isprintable():
        raise InvalidValueError(name, value, "non-empty printable text")
    return str(value)
