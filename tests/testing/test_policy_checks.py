"""A check that never fails proves nothing: each one against a policy made to fail it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

from dips.policy.base import Policy
from dips.policy.recency import Last
from dips.testing import POLICY_CHECKS, check_policy
from dips.testing import policies as checks


class Broken(Policy):
    """Made from a function of (candidates, signals)."""

    def __init__(self, function, **flags):
        self.function = function
        self.flags = flags
        self.calls = 0

    @property
    def draws(self):
        return self.flags.get("draws", False)

    @property
    def asks(self):
        return self.flags.get("asks", False)

    def score(self, candidates, signals):
        self.calls += 1
        return self.function(self, candidates, signals)


def _age(candidates):
    return -candidates.age.double()


def _touch(policy, candidates, signals):
    candidates.rating.add_(1)
    return _age(candidates)


BROKEN = {
    "one_score_per_candidate-shape": (lambda p, c, s: _age(c).sum(1), "returned the shape"),
    "one_score_per_candidate-type": (lambda p, c, s: -c.age, "must be floating-point"),
    "one_score_per_candidate-nan": (lambda p, c, s: _age(c) * torch.nan, "is not a number"),
    "same_scores_again": (lambda p, c, s: _age(c) + p.calls, "keep no state"),
    "input_untouched": (_touch, "changes candidates.rating in place"),
    "blind_to_empty_slots": (
        lambda p, c, s: _age(c) + c.rating.sum(1, keepdim=True),
        "mask them with candidates.present",
    ),
    "blind_to_order": (
        lambda p, c, s: torch.arange(5.0).expand_as(c.position),
        "use candidates.position or age",
    ),
    "blind_to_the_batch": (
        lambda p, c, s: _age(c) - c.seen.double().mean(),
        "differently alone and in a batch",
    ),
    "honest_about_draws-hides": (
        lambda p, c, s: (c.key[:, None] % 97).double() + _age(c),
        "set draws = True",
    ),
    "honest_about_asks": (lambda p, c, s: s.loss(), "set asks = True"),
    "walks_alone_as_in_company": (
        lambda p, c, s: -_age(c) if len(c.seen) > 1 else _age(c),
        "in a batch than alone",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_check_fails_with_a_sentence(name: str) -> None:
    function, sentence = BROKEN[name]
    check = getattr(checks, name.split("-")[0])
    with pytest.raises(AssertionError, match=re.escape(sentence)):
        check(Broken(function))


def test_draws_without_use_of_the_key_is_refused() -> None:
    with pytest.raises(AssertionError, match=re.escape("ignores candidates.key")):
        checks.honest_about_draws(Broken(lambda p, c, s: _age(c), draws=True))


def test_every_check_is_broken_once() -> None:
    assert {name.split("-")[0] for name in BROKEN} == {check.__name__ for check in POLICY_CHECKS}


def test_takes_an_object_a_class_or_a_function() -> None:
    check_policy(Last())
    check_policy(Last)
    check_policy(lambda: Last())
    with pytest.raises(AssertionError, match="is not a dips Policy"):
        check_policy(dict)  # type: ignore[arg-type]


def test_needs_torch_and_numpy_only() -> None:
    script = (
        "import sys\n"
        "for name in ('pytest', 'hypothesis', 'scipy', 'sklearn', 'polars', 'typer', 'rich'):\n"
        "    sys.modules[name] = None\n"
        "from dips.policy.recency import Last\n"
        "from dips.testing import FakeRecommender, check_policy, check_recommender\n"
        "check_policy(Last); check_recommender(FakeRecommender)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
