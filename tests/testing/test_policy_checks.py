"""A check that never fails proves nothing: each one against a policy made to fail it."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial

import pytest
import torch
from torch import nn

from dips.policy.base import Policy
from dips.policy.network import Network
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
    def is_random(self):
        return self.flags.get("is_random", False)

    @property
    def required_signals(self):
        return self.flags.get("required_signals", False)

    def score(self, candidates, signals):
        self.calls += 1
        return self.function(self, candidates, signals)


def _age(candidates):
    return -candidates.age.double()


def _touch(policy, candidates, signals):
    candidates.rating.add_(1)
    return _age(candidates)


class Branching(nn.Module, Policy):
    """Looks at the values of a tensor to decide what to compute: no two runs at once."""

    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.ones(()))

    def score(self, candidates, signals):
        return _age(candidates) * (self.slope if bool(candidates.seen.max() > 3) else 1.0)


class Forgetful(nn.Module, Policy):
    """Its dropout is torch's own: on only while it trains."""

    def __init__(self):
        super().__init__()
        self.slope, self.dropout = nn.Parameter(torch.ones(())), nn.Dropout(0.5)

    def score(self, candidates, signals):
        return self.dropout(_age(candidates)) * self.slope


class Careless(nn.Module, Policy):
    """Has a number that is not kept as it should be: a function of the module adds it."""

    def __init__(self, add):
        super().__init__()
        self.slope = nn.Parameter(torch.ones(()))
        add(self)

    def score(self, candidates, signals):
        return _age(candidates) * self.slope * self.more


class Leaky(Network):
    """Says what is wrong with `weigh` by a function of (candidates, weight)."""

    def __init__(self, function):
        super().__init__()
        self.slope, self.function = nn.Parameter(torch.ones(())), function

    def score_weighted(self, candidates, signals, weight):
        return _age(candidates) * self.slope + self.function(candidates, weight)

    def score(self, candidates, signals):
        return _age(candidates) * self.slope


BROKEN = {
    "one_score_per_candidate-shape": (lambda p, c, s: _age(c).sum(1), "returned the shape"),
    "one_score_per_candidate-type": (lambda p, c, s: -c.age, "must be floating-point"),
    "one_score_per_candidate-nan": (lambda p, c, s: _age(c) * torch.nan, "is not a number"),
    "is_deterministic": (lambda p, c, s: _age(c) + p.calls, "keep no state"),
    "does_not_change_input": (_touch, "changes candidates.rating in place"),
    "ignores_empty_slots": (
        lambda p, c, s: _age(c) + c.rating.sum(1, keepdim=True),
        "mask them with candidates.present",
    ),
    "ignores_slot_order": (
        lambda p, c, s: torch.arange(5.0).expand_as(c.position),
        "use candidates.position or age",
    ),
    "ignores_other_users": (
        lambda p, c, s: _age(c) - c.seen.double().mean(),
        "differently alone and in a batch",
    ),
    "declares_randomness-hides": (
        lambda p, c, s: (c.key[:, None] % 97).double() + _age(c),
        "set is_random = True",
    ),
    "declares_signals-some": (
        lambda p, c, s: s.loss + s.residual,
        "signals.loss is not available: name it in the policy's `required_signals`",
    ),
    "has_all_tensors_in_state-plain": (
        partial(Careless, lambda module: setattr(module, "more", torch.ones(()))),
        "'more' as a plain attribute",
    ),
    "has_all_tensors_in_state-lost": (
        partial(Careless, lambda m: m.register_buffer("more", torch.ones(()), persistent=False)),
        "does not save buffer 'more'",
    ),
    "has_all_tensors_in_state-frozen": (
        partial(
            Careless,
            lambda module: setattr(module, "more", nn.Parameter(torch.ones(()), False)),
        ),
        "the parameter 'more' without a gradient",
    ),
    "works_stacked": (Branching, "must run under torch.func.vmap"),
    "ignores_candidates_of_weight_zero-weights": (
        partial(Leaky, lambda c, w: w.sum(1, keepdim=True)),
        "differs from its score though every weight is 1",
    ),
    "ignores_candidates_of_weight_zero-others": (
        partial(Leaky, lambda c, w: c.present.sum(1, keepdim=True) - w.sum(1, keepdim=True)),
        "lets a candidate of weight 0 change the others' scores",
    ),
    "ignores_candidates_of_weight_zero-nan": (
        partial(Leaky, lambda c, w: torch.where(w > 0, 0.0, torch.nan)),
        "is not a number for a candidate of weight 0",
    ),
    "declares_signals": (lambda p, c, s: s.loss, "name it in the policy's `required_signals`"),
    "rolls_out_users_independently": (
        lambda p, c, s: -_age(c) if len(c.seen) > 1 else _age(c),
        "in a batch than alone",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_check_fails_with_a_sentence(name: str) -> None:
    function, sentence = BROKEN[name]
    check = getattr(checks, name.split("-")[0])
    with pytest.raises(AssertionError, match=re.escape(sentence)):
        check(function() if isinstance(function, type | partial) else Broken(function))


def test_is_random_without_use_of_the_key_is_refused() -> None:
    with pytest.raises(AssertionError, match=re.escape("ignores candidates.key")):
        checks.declares_randomness(Broken(lambda p, c, s: _age(c), is_random=True))


def test_every_signal_must_be_declared() -> None:
    both = Broken(lambda p, c, s: s.loss + s.residual, required_signals=("loss",))
    with pytest.raises(
        AssertionError, match=re.escape("signals.residual is not available: name it")
    ):
        checks.declares_signals(both)
    for required_signals in (("loss", "residual"), True):
        both.flags["required_signals"] = required_signals
        checks.declares_signals(both)


def test_a_module_is_checked_in_evaluation_mode_and_not_changed() -> None:
    policy = Forgetful()
    check_policy(policy)
    assert policy.training
    assert policy.dropout.training
    assert policy.slope.requires_grad
    check_policy(policy.eval())
    assert not policy.training


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
