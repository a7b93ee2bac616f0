from __future__ import annotations

import math
from typing import Any

import pytest

from fedDP.accounting import NeighboringRelation, TrustModel
from fedDP.errors import InvalidValueError, UnsupportedError


def variance(model: str, **values: Any) -> float:
    return TrustModel(model).sum_variance(**{"noise_multiplier": 3.0, "clip_norm": 0.5, "num_clients": 20, **values})


def test_the_names_are_closed() -> None:
    assert [str(model) for model in TrustModel] == ["central", "distributed", "local", "record-level local"]
    with pytest.raises(ValueError, match="shuffled"):
        TrustModel("shuffled")
    assert len({model.trusted for model in TrustModel}) == len(TrustModel)


def test_noise_on_the_sum() -> None:
    assert variance("central") == 2.25
    assert variance("central", num_clients=1) == 2.25
    assert variance("local") == 20 * 2.25
    assert variance("distributed", min_honest=20) == 2.25
    assert variance("distributed", min_honest=5) == 4 * 2.25


def test_shares_of_the_honest_alone_are_the_noise_that_was_promised() -> None:
    for honest in (1, 7, 19):
        share = variance("distributed", min_honest=honest) / 20
        assert honest * share == pytest.approx(2.25, rel=1e-15)


def test_too_few_shares_are_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"num_clients=20: expected at least min_honest=21.*Stop the round"):
        variance("distributed", min_honest=21)
    for missing in (None, 0, -1, 1.5, math.nan, True):
        with pytest.raises(InvalidValueError, match="min_honest="):
            variance("distributed", min_honest=missing)


@pytest.mark.parametrize("model", ["central", "local"])
def test_shares_mean_nothing_elsewhere(model: str) -> None:
    with pytest.raises(InvalidValueError, match=f"min_honest=5: expected None for the trust model '{model}'"):
        variance(model, min_honest=5)


def test_noise_of_silos_is_not_on_the_sum() -> None:
    with pytest.raises(UnsupportedError, match=r"record-level local.*each silo's own"):
        variance("record-level local")


@pytest.mark.parametrize("model", list(TrustModel))
@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, True, None, "1", 1e12])
def test_bad_values_are_refused_by_name(model: TrustModel, bad: Any) -> None:
    for name in ("noise_multiplier", "clip_norm", "num_clients"):
        with pytest.raises(InvalidValueError, match=f"{name}="):
            variance(model, **{name: bad})


def test_a_local_report_is_compared_with_any_other() -> None:
    assert TrustModel.LOCAL.check_relation("replace_one") == "replace_one"
    others: tuple[NeighboringRelation, ...] = ("zero_out", "add_remove")
    for relation in others:
        with pytest.raises(UnsupportedError, match=r"twice the clip norm.*replace_one"):
            TrustModel.LOCAL.check_relation(relation)
        assert TrustModel.CENTRAL.check_relation(relation) == relation
    for model in TrustModel:
        with pytest.raises(InvalidValueError, match="neighboring_relation='swap'"):
            model.check_relation("swap")  # type: ignore[arg-type]
