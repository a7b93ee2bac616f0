"""Which change of the data is hidden, and how far it can move a sum."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from fedDP.errors import InvalidValueError

NeighboringRelation: TypeAlias = Literal["zero_out", "add_remove", "replace_one"]
"""Which change of the data is hidden: one client's data absent, one client absent, or one client's data swapped."""

NEIGHBORING_RELATIONS: tuple[NeighboringRelation, ...] = get_args(NeighboringRelation)


def sensitivity(neighboring_relation: NeighboringRelation) -> float:
    """How far one client can move the sum, in clip norms.

    Raises:
        InvalidValueError: for an unknown relation.

    >>> sensitivity("zero_out"), sensitivity("replace_one")
    (1.0, 2.0)
    """
    if neighboring_relation not in NEIGHBORING_RELATIONS:
        allowed = f"one of {', '.join(NEIGHBORING_RELATIONS)}"
        raise InvalidValueError("neighboring_relation", neighboring_relation, allowed)
    return 2.0 if neighboring_relation == "replace_one" else 1.0
