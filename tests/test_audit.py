"""docs/audit.md: its code runs on a real export, without fedDP, and finds what the ledger says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedDP.accounting import Gaussian
from fedDP.budget import Budget
from fedDP.cli import main
from fedDP.reporting.budget_export import CSV_COLUMNS
from tests.budget.ledgers import without_sync
from tests.reporting.ledgers import FULL, SAMPLED, charged_ledger
from tests.scenario.runs import strict

TEXT = (Path(__file__).resolve().parents[1] / "docs" / "audit.md").read_text(encoding="utf-8")
EPSILON, CHAIN = re.findall(r"^```python\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    without_sync(monkeypatch)


def run(code: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    exec(compile(code, "audit.md", "exec"), {})
    return capsys.readouterr().out.strip()


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # ten lines for a person to type
@pytest.mark.parametrize(
    ("event", "relation"),
    [(FULL, "zero_out"), (FULL, "replace_one"), (SAMPLED, "add_remove")],
    ids=["full", "full-replace-one", "poisson"],
)
def test_an_auditor_finds_the_epsilon_that_the_ledger_shows(
    event: Gaussian, relation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = Budget(delta=1e-6, year=2.0)
    charged_ledger(tmp_path / "ledger.db", event=event, budget=budget, neighboring_relation=relation)
    monkeypatch.chdir(tmp_path)
    assert main(["budget", "export", "ledger.db", "--format", "csv", "--out", "ledger.csv"]) == 0
    capsys.readouterr()
    assert main(["budget", "show", "ledger.db", "--json"]) == 0
    shown = {window["key"]: window["spent_epsilon"] for window in strict(capsys.readouterr().out)["windows"]}
    for prefix, key in (("2026-", "2026"), ("2026-W52", "2026-W52"), ("2027-", "2027")):
        audited = float(run(EPSILON.replace('"2026-"', repr(prefix)), capsys))
        # The numerical accountant is at most 1e-4 above the exact value; the Rényi one is looser.
        assert 0.8 * shown[key] <= audited <= shown[key] + 1e-4, key


def test_the_lines_are_as_few_as_promised_and_need_no_fedDP() -> None:
    assert len([line for line in EPSILON.splitlines() if line]) == 10
    assert "fedDP" not in EPSILON + CHAIN


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_an_auditor_can_recompute_the_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = charged_ledger(tmp_path / "ledger.db", event=SAMPLED)
    monkeypatch.chdir(tmp_path)
    assert main(["budget", "export", "ledger.db", "--format", "json", "--out", "ledger.json"]) == 0
    assert run(CHAIN, capsys) == f"12 rows, head {ledger.head[1]}"
    altered = (tmp_path / "ledger.json").read_text().replace('"clip_norm": 1.0', '"clip_norm": 2.0', 1)
    (tmp_path / "ledger.json").write_text(altered)
    with pytest.raises(AssertionError, match="1"):
        run(CHAIN, capsys)


def test_every_column_is_explained() -> None:
    explained = re.findall(r"`(\w+)`", "\n".join(line for line in TEXT.splitlines() if line.startswith("| `")))
    assert set(CSV_COLUMNS) <= set(explained)


def test_links_point_at_files() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (Path(__file__).resolve().parents[1] / "docs" / target).exists(), target
