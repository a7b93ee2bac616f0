"""What an operator may decide about a ledger: each decision is a row of its own, chained like every other.

Nothing else about a ledger can be changed. A copy that was restored after a disaster is not among the acts: what it
lacks was released all the same, and accepting it would make spent budget look unspent.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from fedDP.budget.enrolment_terms import EnrolmentTerms
from fedDP.budget.records import canonical_json
from fedDP.budget.weeks import IsoWeek
from fedDP.errors import InvalidValueError


@dataclass(frozen=True, kw_only=True)
class ClockJumpAcknowledged:
    """The clock is right, although it jumped: the next charge may be made in `week`, and in no other one."""

    type: ClassVar[str] = "clock-jump-acknowledged"
    week: str

    def __post_init__(self) -> None:
        IsoWeek.parse(self.week)


@dataclass(frozen=True, kw_only=True)
class EnrolmentChanged:
    """From here on charges are made for another enrolment, numbered `version`."""

    type: ClassVar[str] = "enrolment-changed"
    version: int
    enrolment: EnrolmentTerms


@dataclass(frozen=True, kw_only=True)
class AnchorReset:
    """The operator file with the anchor was lost; a new one begins after row `seq`, whose hash is `hash`."""

    type: ClassVar[str] = "anchor-reset"
    seq: int
    hash: str


Act: TypeAlias = ClockJumpAcknowledged | EnrolmentChanged | AnchorReset

_ACTS: dict[str, type[Act]] = {act.type: act for act in (ClockJumpAcknowledged, EnrolmentChanged, AnchorReset)}


def act_to_json(act: Act) -> str:
    """The text of an operator's row."""
    return canonical_json({"type": act.type, **dataclasses.asdict(act)})


def act_from_json(text: str) -> Act:
    """Reads what `act_to_json` wrote; refuses everything else.

    Raises:
        InvalidValueError: for another text.
    """
    try:
        values = json.loads(text)
        kind = _ACTS[values.pop("type")]
        if kind is EnrolmentChanged:
            values["enrolment"] = EnrolmentTerms(**values["enrolment"])
        act = kind(**values)
        if act_to_json(act) == text:
            return act
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidValueError("act", text, "an operator's act") from error
    raise InvalidValueError("act", text, "an operator's act")
