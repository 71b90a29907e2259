"""Variants of the set network, and their inputs."""

import pytest
import torch
from ablation_policies import NoAges, RandomInit, RecencySlopeOnly, Unchanged, ageless

from dips.policy.recency import Last
from dips.policy.set_network import SetNetwork
from dips.sketch.selection import Greedy
from dips.testing import check_policy, fake_signals, random_candidates


def made(kind, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind(dim=4)


def candidates():
    return random_candidates(users=40, size=3, period=2)[1]


def scores(policy, found):
    return torch.where(found.present, policy.score(found, fake_signals(candidates())), 0.0)


def moved(policy):
    """Return the policy with changed weights."""
    with torch.no_grad():
        for name in ("output", "direct"):
            value = getattr(policy.network, name)
            value.copy_(torch.randn(value.shape, generator=torch.Generator().manual_seed(1)))
    return policy


@pytest.mark.parametrize("kind", [NoAges, RecencySlopeOnly])
def test_the_policy_passes_its_checks(kind):
    check_policy(moved(made(kind)))


@pytest.mark.parametrize("kind", [Unchanged, RecencySlopeOnly])
def test_initial_policy_of_recency(kind):
    found = candidates()
    kept, last = (
        Greedy().choose(policy.score(found, fake_signals(found)), found, 3)
        for policy in (made(kind), Last())
    )
    assert torch.equal(kept, last)


@pytest.mark.parametrize("kind", [RandomInit, NoAges])
def test_initial_policy_depends_on_the_seed(kind):
    found = candidates()
    assert torch.equal(scores(made(kind), found), scores(made(kind), found))
    assert not torch.equal(scores(made(kind), found), scores(made(kind, seed=1), found))
    assert made(kind).network.slope == 0


def test_the_unchanged_variant_equals_learned():
    inside = SetNetwork(dim=4, center=3.5, generator=torch.Generator().manual_seed(7))
    for name, value in made(Unchanged, seed=7).network.state_dict().items():
        assert torch.equal(value, inside.state_dict()[name]), name


@pytest.mark.parametrize(("kind", "sees"), [(Unchanged, True), (RandomInit, True), (NoAges, False)])
def test_variants_with_and_without_ages(kind, sees):
    found, policy = candidates(), moved(made(kind))
    assert torch.equal(scores(policy, found), scores(policy, ageless(found))) is not sees


def test_the_linear_variant_has_no_age_feature():
    found, policy = candidates(), moved(made(RecencySlopeOnly))
    assert not torch.equal(scores(policy, found), scores(policy, ageless(found)))
    with torch.no_grad():
        policy.network.slope.zero_()
    assert torch.equal(scores(policy, found), scores(policy, ageless(found)))
