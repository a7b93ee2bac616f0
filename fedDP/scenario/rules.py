"""Rules between the keys of a scenario.

Each rule names the keys it reads. A rule is skipped when one of them is faulty by itself, so that no
fault is reported twice or derived from a default that the user never meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedDP.scenario.sections import PACKAGED_DATA
from fedDP.scenario.values import is_object_name

if TYPE_CHECKING:
    from fedDP.scenario.schema import Sections

PEOPLE = frozenset(
    [
        "patient",
        "customer",
        "person",
        "people",
        "user",
        "individual",
        "member",
        "employee",
        "citizen",
        "student",
        "human",
        "subject",
        "participant",
        "resident",
        "child",
        "children",
        "adult",
        "man",
        "men",
        "woman",
        "women",
        "worker",
        "consumer",
        "pupil",
        "respondent",
        "subscriber",
        "policyholder",
        "cardholder",
        "accountholder",
        "holder",
        "taxpayer",
        "voter",
        "donor",
        "passenger",
        "borrower",
        "applicant",
        "tenant",
    ]
)
"""Words that name one human being; plurals are recognised too."""

_WINDOWS = ("budget.week", "budget.year", "budget.trailing", "budget.lifetime")

Rule = Callable[["Sections"], str | None]


@dataclass(frozen=True, kw_only=True)
class _Registered:
    reads: tuple[str, ...]
    check: Rule


_RULES: list[_Registered] = []


def _rule(*reads: str) -> Callable[[Rule], Rule]:
    def register(check: Rule) -> Rule:
        _RULES.append(_Registered(reads=reads, check=check))
        return check

    return register


def find_faults(sections: Sections, *, faulty: Collection[str] = ()) -> list[str]:
    """The broken rules, one sentence each.

    Args:
        sections: sections that are valid by themselves; a faulty key holds its default.
        faulty: full names of the keys whose value was refused.
    """
    return list(_find(sections, faulty))


def _find(sections: Sections, faulty: Collection[str]) -> Iterator[str]:
    for registered in _RULES:
        if any(name in faulty for name in registered.reads):
            continue
        fault = registered.check(sections)
        if fault is not None:
            yield fault


def names_people(unit: str) -> bool:
    """Whether a unit names human beings.

    >>> names_people("bank customers"), names_people("hospital")
    (True, False)
    """
    words = re.findall(r"[a-z]+", unit.lower())
    return any(word in PEOPLE or word.removesuffix("s") in PEOPLE for word in words)


def _has_window(sections: Sections) -> bool:
    budget = sections.budget
    return any(window is not None for window in (budget.week, budget.year, budget.trailing, budget.lifetime))


@_rule("data.name", "data.path")
def _one_source(sections: Sections) -> str | None:
    data = sections.data
    if data.name is not None and data.path is not None:
        return f"data.name={data.name!r} and data.path={data.path!r}: give one of them, not both"
    if data.name is None and data.path is None:
        return "data.name or data.path is required: the name of packaged data (heart-disease) or a file of your own"
    return None


@_rule("data.path", "data.target")
def _path_has_target(sections: Sections) -> str | None:
    if sections.data.path is not None and sections.data.target is None:
        return "data.target is required with data.path: name the column to predict"
    return None


@_rule("data.path", "data.population_id", "privacy.noise_multiplier")
def _path_has_population(sections: Sections) -> str | None:
    data = sections.data
    if data.path is None or data.population_id is not None or sections.privacy.noise_multiplier == 0:
        return None
    return (
        "data.population_id is required with data.path: it names whose data this is, so that every run on "
        "the same population is charged to the same ledger"
    )


@_rule("data.ranges", "data.categories")
def _range_or_categories(sections: Sections) -> str | None:
    both = [name for name in sections.data.ranges if name in sections.data.categories]
    if both:
        return f"data.ranges and data.categories both hold {', '.join(map(repr, both))}: a column has one of them"
    return None


@_rule("scenario.unit", "data.client_column", "data.site_column", "data.name")
def _people_are_not_sites(sections: Sections) -> str | None:
    unit, data = sections.scenario.unit, sections.data
    site_column = data.site_column or PACKAGED_DATA.get(data.name or "")
    if data.client_column is None or data.client_column != site_column or not names_people(unit):
        return None
    return (
        f"scenario.unit={unit!r} names people, but data.client_column={data.client_column!r} is the site column, so "
        f"each client is a whole site; name the site (unit = 'hospital'), or leave out data.client_column"
    )


@_rule("model.name", "model.hidden", "model.options")
def _own_keys_of_models(sections: Sections) -> str | None:
    model = sections.model
    if model.hidden and model.name != "mlp":
        return f"model.hidden={list(model.hidden)!r}: model.name={model.name!r} has no such key; leave it out"
    if model.options and not is_object_name(model.name):
        names = ", ".join(f"model.{name}" for name in model.options)
        return f"{names}: only a model of your own ('package.module:attribute') has further keys; leave them out"
    return None


@_rule("privacy.noise_multiplier", "privacy.target_epsilon", *_WINDOWS)
def _noise_and_budget(sections: Sections) -> str | None:
    noise = sections.privacy.noise_multiplier
    limited = _has_window(sections) or sections.privacy.target_epsilon is not None
    if noise == "auto" and not limited:
        return (
            "privacy.noise_multiplier='auto' needs something to fit: set budget.week, year, trailing or lifetime, "
            "or privacy.target_epsilon, or give a number"
        )
    if noise == 0 and limited:
        return (
            "privacy.noise_multiplier=0 means no privacy and cannot keep a budget: remove privacy.target_epsilon "
            "and every window of [budget], or use 'auto'"
        )
    return None


@_rule("privacy.sampling", "privacy.sampling_rate", "privacy.cohort_size")
def _one_rate(sections: Sections) -> str | None:
    privacy = sections.privacy
    rate, cohort = privacy.sampling_rate, privacy.cohort_size
    if privacy.sampling == "all":
        if rate is None and cohort is None:
            return None
        given = "sampling_rate" if rate is not None else "cohort_size"
        return f"privacy.{given} has no meaning with privacy.sampling='all': leave it out, or use 'poisson'"
    if rate is not None and cohort is not None:
        return f"privacy.sampling_rate={rate!r} and privacy.cohort_size={cohort!r}: give one of them, not both"
    if rate is None and cohort is None:
        return "privacy.sampling='poisson' needs privacy.sampling_rate or privacy.cohort_size"
    return None


@_rule("privacy.sampling", "privacy.neighboring_relation")
def _replace_one_is_unsampled(sections: Sections) -> str | None:
    privacy = sections.privacy
    if privacy.neighboring_relation == "replace_one" and privacy.sampling == "poisson":
        return (
            "privacy.neighboring_relation='replace_one' with privacy.sampling='poisson': no sound accountant is "
            "available; use 'zero_out' or 'add_remove', or sampling = 'all'"
        )
    return None


@_rule("privacy.sampling", "privacy.accountant")
def _gdp_is_unsampled(sections: Sections) -> str | None:
    if sections.privacy.accountant == "gdp" and sections.privacy.sampling == "poisson":
        return (
            "privacy.accountant='gdp' with privacy.sampling='poisson': a sampled round has no exact GDP bound; "
            "use 'rdp' or 'auto', or sampling = 'all'"
        )
    return None


@_rule("privacy.sampling", "budget.mode")
def _gaussian_mode_is_unsampled(sections: Sections) -> str | None:
    if sections.budget.mode == "gaussian" and sections.privacy.sampling == "poisson":
        return (
            "budget.mode='gaussian' with privacy.sampling='poisson': the rule covers rounds of all clients only; "
            "use 'renyi' or 'auto', or sampling = 'all'"
        )
    return None


@_rule("budget.week", "budget.year")
def _even_needs_a_year(sections: Sections) -> str | None:
    if sections.budget.week == "even" and sections.budget.year is None:
        return "budget.week='even' divides the year's budget: set budget.year, or give the week an epsilon"
    return None


@_rule("budget.clock", "server.rounds_per_week")
def _simulated_weeks_have_rounds(sections: Sections) -> str | None:
    if sections.budget.clock == "simulated" and sections.server.rounds_per_week is None:
        return "budget.clock='simulated' needs server.rounds_per_week: how many rounds make a week"
    return None


@_rule("scenario.seed", "budget.ledger")
def _seeded_without_ledger(sections: Sections) -> str | None:
    seed, ledger = sections.scenario.seed, sections.budget.ledger
    if seed is not None and ledger is not None:
        return (
            f"scenario.seed={seed!r} with budget.ledger={ledger!r}: a seeded run cannot charge a real ledger, because "
            "its noise can be repeated; leave out one of them"
        )
    return None


@_rule("scenario.seed", "data.path", "data.public", "privacy.noise_multiplier")
def _seeded_without_private_data(sections: Sections) -> str | None:
    seed, data = sections.scenario.seed, sections.data
    if seed is None or data.path is None or data.public or sections.privacy.noise_multiplier == 0:
        return None
    return (
        f"scenario.seed={seed!r} with data.path={data.path!r}: a seeded run cannot charge a real ledger, because its "
        "noise can be repeated; leave out the seed, or declare data.public = true if the data is public"
    )
