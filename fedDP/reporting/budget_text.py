"""``feddp budget show`` as a page for a person who signs for the budget."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from fedDP.reporting.terminal import number, table

_WIDTH = 110
_FEW = 8
_LAST_WEEKS = 4

RELATIONS = {
    "zero_out": "hides whether one client's data is there or null",
    "add_remove": "hides whether one client is there",
    "replace_one": "hides which of two data sets one client has",
}
DOMAINS = {
    "gaussian": "mu squared of Gaussian DP",
    "renyi": "the Rényi cost at one order, fixed for each window",
    "plan": "releases used up of a committed plan",
}


def budget_text(page: Mapping[str, Any], *, everything: bool = False) -> str:
    """The page of a ledger.

    Args:
        page: what `budget_page` returns.
        everything: all weeks and all runs, however many there are.
    """
    parts = [
        f"Ledger {page['ledger']}\n" + table(_terms(page)),
        "Windows\n"
        + table(_windows(page, everything))
        + "\n"
        + _paragraph(_meaning(page))
        + _paragraph(page["notes"]["weeks"]),
    ]
    if page["runs"]:
        parts += [
            "By purpose\n" + table(_groups(page, "purposes", everything)),
            "By run\n" + table(_groups(page, "runs", everything)) + "\n" + _paragraph(page["notes"]["groups"]),
        ]
    if page["acts"]:
        parts.append("Operators\n" + table(_acts(page)))
    parts.append("Integrity\n" + table(_integrity(page)))
    return "\n\n".join(part.rstrip() for part in parts)


def share_text(fraction: float | None) -> str:
    """A share as a percentage that is 0% or 100% only when it is."""
    if fraction is None:
        return "-"
    if 0.0 < fraction < 0.0005:
        return "<0.1%"
    if 0.9995 <= fraction < 1.0:
        return ">99.9%"
    return f"{fraction:.1%}"


def _paragraph(text: str) -> str:
    if not text:
        return ""
    return textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False) + "\n"


def _terms(page: Mapping[str, Any]) -> list[tuple[str, str]]:
    budget, clock = page["budget"], page["clock"]
    orders = [f"{name} {order}" for name, order in page["orders"].items() if order is not None]
    rows = [
        (
            "protects",
            f"each {page['unit']} as a client ({page['neighboring_relation']}: "
            f"{RELATIONS[page['neighboring_relation']]})",
        ),
        ("population", page["population"] or "not named: this ledger speaks of the runs charged to it alone"),
        ("delta", f"{page['delta']:g}, for every epsilon on this page"),
        ("allowances", _allowances(budget)),
        ("mode", page["mode_reason"] or page["mode"]),
        ("costs", DOMAINS[page["mode"]] + (f" ({', '.join(orders)})" if orders else "")),
        ("accountant", f"{page['accountant']}, of epsilon spent"),
        ("clock", "simulated: weeks are weeks of a simulation" if clock == "simulated" else "system: ISO weeks in UTC"),
    ]
    if page["enrolment"]:
        terms = page["enrolment"]
        rows.append(("enrolment", f"{terms['num_clients']} clients, fingerprint {terms['sha256']}"))
    if page["simulation"]:
        seeded = f"{page['seeded_charges']} of its charges are seeded"
        rows.append(
            ("randomness", f"a simulation's ledger, {seeded}: their noise can be repeated, so epsilon is nominal")
        )
    return rows


def _allowances(budget: Mapping[str, Any]) -> str:
    words = {
        "week": "each ISO week",
        "year": "each ISO year",
        "trailing": "any 53 weeks in a row",
        "lifetime": "the whole life of the ledger",
    }
    found = [
        f"{words[name]}: an even share of the year's cost"
        if budget[name] == "even"
        else f"{words[name]}: epsilon {number(budget[name])}"
        for name in ("year", "week", "trailing", "lifetime")
        if budget[name] is not None
    ]
    text = "; ".join(found) or "none: nothing is refused"
    if budget["year"] is not None and budget["lifetime"] is None:
        text += ". The year's renews, so the lifetime has no limit of its own"
    if budget.get("carry_over") == "cumulative":
        text += ". What a week leaves is carried over to later weeks of its year, and counts in their allowance"
    if reserve := budget.get("reserve_evaluation"):
        text += f". Of each, {share_text(reserve)} is for evaluation alone, and is among what is left"
    return text


def _windows(page: Mapping[str, Any], everything: bool) -> list[tuple[str, ...]]:
    head = ("window", "key", "epsilon spent", "epsilon certified", "used", "left", "of the year", "charges")
    weeks = [window for window in page["windows"] if window["window"] == "week"]
    shown = weeks if everything or len(weeks) <= _FEW else _worth_reading(weeks)
    rows = [_window(window) for window in shown]
    if len(shown) < len(weeks):
        rows.append(_rest(weeks, shown))
    return [head, *rows, *(_window(window) for window in page["windows"] if window["window"] != "week")]


def _worth_reading(weeks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The week that spent most, and the last ones."""
    worst = max(weeks, key=lambda week: (week["spent_fraction"] or 0.0, week["spent_epsilon"]))
    last = weeks[-_LAST_WEEKS:]
    return list(last) if worst in last else [worst, *last]


def _rest(weeks: Sequence[Mapping[str, Any]], shown: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    rest = [week for week in weeks if week not in shown]
    used = [week["spent_fraction"] for week in rest if week["spent_fraction"] is not None]
    left = [week["left_fraction"] for week in rest if week["left_fraction"] is not None]
    certified = [week["epsilon_certified"] for week in rest if week["epsilon_certified"] is not None]
    of_year = [week["share_of_year"] for week in rest if "share_of_year" in week]
    return (
        "week",
        f"{len(rest)} more (--all)",
        f"<= {number(max(week['spent_epsilon'] for week in rest))}",
        f"<= {number(max(certified))}" if certified else "-",
        f"<= {share_text(max(used))}" if used else "-",
        f">= {share_text(min(left))}" if left else "-",
        share_text(sum(of_year)) if of_year and len({week["key"][:4] for week in rest}) == 1 else "-",
        str(sum(week["charges"] for week in rest)),
    )


def _window(window: Mapping[str, Any]) -> tuple[str, ...]:
    of_year = window.get("share_of_year", window["spent_fraction"] if window["window"] == "year" else None)
    return (
        window["window"],
        window["key"],
        number(window["spent_epsilon"]),
        number(window["epsilon_certified"]),
        share_text(window["spent_fraction"]),
        share_text(window["left_fraction"]),
        share_text(of_year),
        str(window["charges"]),
    )


def _meaning(page: Mapping[str, Any]) -> str:
    return (
        "Spent: the epsilon of what was charged so far. Certified: what holds whatever is charged next; promise this "
        f"one. Used, left and 'of the year' are shares of an allowance in the costs that add up "
        f"({DOMAINS[page['mode']]}), not of its epsilon."
    )


def _groups(page: Mapping[str, Any], kind: str, everything: bool) -> list[tuple[str, ...]]:
    groups = page[kind]
    keys = sorted({key for group in groups for key in group["shares"]})[-2:]
    label = {"year": "of {}", "lifetime": "of the lifetime"}
    head = (
        {"purposes": "purpose", "runs": "run"}[kind],
        "charges",
        "released",
        "open",
        "abandoned",
        "epsilon alone",
        "certified",
        *(label[page["shares_of"]].format(key) for key in keys),
    )
    shown = groups if everything or len(groups) <= _FEW else groups[-_FEW:]
    rows = [
        (
            group["name"],
            *(str(group[name]) for name in ("charges", "released", "open", "abandoned")),
            number(group["epsilon"]),
            number(group["epsilon_certified"]),
            *(share_text(group["shares"].get(key, 0.0)) for key in keys),
        )
        for group in shown
    ]
    if rest := groups[: len(groups) - len(shown)]:
        rows.insert(
            0,
            (
                f"{len(rest)} earlier (--all)",
                *(str(sum(group[name] for group in rest)) for name in ("charges", "released", "open", "abandoned")),
                "-",
                "-",
                *(share_text(sum(group["shares"].get(key, 0.0) for group in rest)) for key in keys),
            ),
        )
    return [head, *rows]


def _acts(page: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows = [(f"row {act['seq']}", act["act"]["type"], act["operator"], act["reason"]) for act in page["acts"]]
    return [("where", "what", "who", "why"), *rows]


def _integrity(page: Mapping[str, Any]) -> list[tuple[str, str]]:
    file = page["anchor_file"]
    kept = {
        "kept": "{path} agrees: no row was cut off since it was written",
        "missing": "{path} is MISSING: whether rows were cut off is known only to anchors kept elsewhere",
    }
    return [
        ("head", f"row {page['head']['seq']}, {page['head']['hash']}"),
        ("anchor file", kept[file["status"]].format(path=file["path"]) if file else "none: keep the head elsewhere"),
    ]
