"""What a ledger is, fixed for its whole life when it is created."""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedDP.accounting import Gaussian, NeighboringRelation
from fedDP.accounting.events import sensitivity
from fedDP.budget.clock import ClockKind
from fedDP.budget.enrolment_terms import EnrolmentTerms
from fedDP.budget.policy import CHECK_ORDER, Budget, Mode, WindowName, WindowRule, choose_mode, window_rules
from fedDP.budget.records import SCHEMA_VERSION, canonical_json
from fedDP.errors import InvalidValueError, LedgerError

_LONGEST_TEXT = 1000  # a ledger is kept for ever, and read whole


@dataclass(frozen=True, kw_only=True)
class LedgerDefinition:
    """Row 0 of a ledger.

    Attributes:
        population: names the people that the ledger speaks of; one population and unit has one ledger.
        simulation: whether it may be charged by seeded runs, whose epsilon is nominal; a real ledger refuses them.
        rules: the windows with their fixed orders and allowances in units.
        enrolment: who was enrolled at creation; None where nobody keeps an enrolment.
    """

    ledger_id: str
    population: str | None
    unit: str
    neighboring_relation: NeighboringRelation
    mode: Mode
    budget: Budget
    clock: ClockKind
    simulation: bool
    rules: dict[WindowName, WindowRule]
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
        plan: Sequence[Gaussian] | None,
        clock: ClockKind,
        simulation: bool,
        enrolment: EnrolmentTerms | None = None,
    ) -> LedgerDefinition:
        """Chooses the mode and the windows' orders from `plan`, which must not depend on data.

        Raises:
            InvalidValueError: for an unknown mode or relation, an empty unit, or a budget that no order can certify.
            UnsupportedError: gaussian mode for a plan with sampled rounds.
        """
        check_text("unit", unit)
        if population is not None:
            check_text("population", population)
        if enrolment is not None and not isinstance(enrolment, EnrolmentTerms):
            raise InvalidValueError("enrolment", enrolment, "EnrolmentTerms")
        sensitivity(neighboring_relation)
        chosen = choose_mode(mode, plan)
        return cls(
            ledger_id=secrets.token_hex(16),
            population=population,
            unit=unit,
            neighboring_relation=neighboring_relation,
            mode=chosen,
            budget=budget,
            clock=clock,
            simulation=simulation,
            rules=window_rules(budget, chosen, plan, neighboring_relation),
            enrolment=enrolment,
        )

    def to_json(self) -> str:
        """The text of row 0."""
        fields = dataclasses.asdict(self)
        # Units exceed the 2**53 that JSON readers keep exact.
        fields["rules"] = {name: {**rule, "units": str(rule["units"])} for name, rule in fields["rules"].items()}
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
            fields["budget"] = Budget(**fields["budget"])
            if fields["enrolment"] is not None:
                fields["enrolment"] = EnrolmentTerms(**fields["enrolment"])
            rules = {
                name: WindowRule(**{**rule, "units": int(rule["units"])}) for name, rule in fields["rules"].items()
            }
            fields["rules"] = {name: rules[name] for name in CHECK_ORDER if name in rules}  # JSON sorted them
            return cls(**fields)
        except (ValueError, TypeError, KeyError) as error:
            raise LedgerError(f"The ledger's definition cannot be read: {error}") from error

    def differences(self, wanted: Mapping[str, Any], *, mode: str) -> list[str]:
        """How this definition differs from the attributes in `wanted`, and from `mode` unless that is "auto"."""
        if mode != "auto":
            wanted = {**wanted, "mode": mode}
        own = {name: getattr(self, name) for name in wanted}
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
