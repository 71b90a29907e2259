"""Policies by name, and what is said of names that do not fit."""

from __future__ import annotations

import re
import sys
import types

import pytest

from dips.errors import ConfigError
from dips.policy.hardest import Hardest
from dips.policy.influence import Influence
from dips.policy.last_top import LastTop
from dips.policy.recency import Last
from dips.policy.registry import POLICIES, make_policy
from dips.policy.reservoir import Mix


def test_every_name_makes_its_policy() -> None:
    names = {"last", "reservoir", "hardest", "influence", "mix", "last-top", "last-distinct",
             "frequent", "all"}  # fmt: skip
    assert names <= set(POLICIES)
    with_one = {"mix": "mix:1", "last-top": "last-top:1"}
    made = {name: make_policy(with_one.get(name, name), size=4) for name in names}
    assert len({type(policy) for policy in made.values()}) == len(names)


def test_arguments() -> None:
    assert make_policy("mix:3", size=4) == Mix(3)
    assert make_policy("last-top:3", size=4) == LastTop(3)
    assert make_policy("hardest:20", size=4) == Hardest(20.0)
    assert make_policy("hardest", size=4) == Hardest(None)
    assert make_policy("influence:2.5", size=4, damping=3.0) == Influence(4, 3.0, 2.5)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("hardst:8", "unknown policy 'hardst:8': did you mean 'hardest'? choose one of all"),
        (
            "lastt",
            "unknown policy 'lastt': did you mean 'last'? choose one of all, dips, dips@1",
        ),
        ("", "unknown policy ''"),
        ("last:3", "policy 'last' takes no argument, but got '3'"),
        ("mix", "policy 'mix' needs a whole number of newest, for example mix:2"),
        ("mix:1.5", "policy 'mix' needs a whole number"),
        ("mix:nan", "policy 'mix' needs a whole number"),
        ("mix:inf", "policy 'mix' needs a whole number"),
        ("mix:two", "policy 'mix:two': the number of newest must be a number"),
        ("mix:4", "mix:4 leaves no slot to sample at size 4"),
        ("mix:0", "mix:0: the number of newest must be at least 1"),
        ("last-top", "policy 'last-top' needs a whole number of newest, for example last-top:2"),
        ("last-top:4", "last-top:4 leaves no slot for predicted scores at size 4"),
        ("last-top:0", "last-top:0: the number of newest must be at least 1"),
        ("hardest:soon", "policy 'hardest:soon': the half-life must be a number"),
        ("hardest:-1", "hardest:-1.0: the half-life in steps must be positive"),
        ("influence:nan", "the half-life in steps must be positive"),
        ("no.such.module:Thing", "policy 'no.such.module:Thing' cannot be made"),
        ("dips.policy.recency:Nothing", "policy 'dips.policy.recency:Nothing' cannot be made"),
        ("dips.policy.influence:Influence", "cannot be made"),  # it needs a size
        ("dips.stream.schedule:Schedule", "is not a dips.Policy"),
        ("dips.policy.recency", "cannot be made"),
    ],
)
def test_wrong_names_are_refused(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        make_policy(name, size=4)


def test_a_user_policy_by_import_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("my_policies")
    module.Mine = type("Mine", (Last.__base__,), {"score": Last.score})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_policies", module)
    made = make_policy("my_policies:Mine", size=4)
    assert type(made).__name__ == "Mine"
