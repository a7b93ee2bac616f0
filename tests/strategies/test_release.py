"""What a grant allows the aggregator to release."""

from __future__ import annotations

import numpy as np
import pytest

from fedDP.accounting import FullParticipation, Gaussian
from fedDP.budget import Grant, IsoWeek
from fedDP.errors import GrantError
from fedDP.privacy.keys import RootKey
from fedDP.strategies.release import privatise


def test_a_grant_for_the_steps_of_a_client_draws_no_noise_at_the_server() -> None:
    event = Gaussian(1.0, count=2)
    grant = Grant(
        seq=7,
        run_id="run",
        round=1,
        purpose="train",
        attempt=1,
        event=event,
        noise_multiplier=event.noise_multiplier,
        clip_norm=1.0,
        denominator=1.0,
        max_weight=1.0,
        sampling=FullParticipation(),
        week=IsoWeek(2026, 1),
    )
    with pytest.raises(GrantError, match="row 7 is for 2 noised steps at a client"):
        privatise(np.zeros(3, dtype=np.int64), grant, RootKey.create())
    assert not grant.used
