"""What policies declare about themselves."""

from __future__ import annotations

import pytest

from dips.errors import ConfigError
from dips.policy.base import Policy, signals_of
from dips.policy.frequency import Frequent
from dips.policy.hardest import Hardest
from dips.policy.influence import Influence
from dips.policy.recency import KeepAll, Last, LastDistinct
from dips.policy.reservoir import Mix, Reservoir
from dips.sketch.signals import SIGNALS


def test_declarations_of_the_rules() -> None:
    """From these, training decides when to roll out again."""
    made: list[Policy] = [Last(), LastDistinct(), KeepAll(), Frequent(), Reservoir(), Mix(1)]
    made += [Hardest(), Influence(2)]
    flags = {type(p).__name__: (p.required_signals, p.is_random, p.keeps_all) for p in made}
    assert flags == {
        "Last": ((), False, False),
        "LastDistinct": ((), False, False),
        "KeepAll": ((), False, True),
        "Frequent": ((), False, False),
        "Reservoir": ((), True, False),
        "Mix": ((), True, False),
        "Hardest": (("loss",), False, False),
        "Influence": (("read",), False, False),
    }


def test_required_signals_are_names_of_signals() -> None:
    """True means any signal; an unknown name is refused."""
    policy = Last()
    for required_signals, meant in ((True, SIGNALS), (False, ()), ((), ()), (("loss",), ("loss",))):
        policy.required_signals = required_signals
        assert signals_of(policy) == meant
    for wrong in (("loss", "losses"), "loss"):
        policy.required_signals = wrong  # type: ignore[assignment]
        with pytest.raises(
            ConfigError, match="a tuple of loss, residual, predicted_score, embedding, read"
        ):
            signals_of(policy)
