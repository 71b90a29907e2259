"""Set networks that are told less: policies that fit, and that differ in what they are told."""

import pytest
import torch
from ablation_policies import NoAges, RandomStart, RecencyAlone, Same, ageless

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
    """As if it had learned something."""
    with torch.no_grad():
        for name in ("last", "direct"):
            value = getattr(policy.network, name)
            value.copy_(torch.randn(value.shape, generator=torch.Generator().manual_seed(1)))
    return policy


@pytest.mark.parametrize("kind", [NoAges, RecencyAlone])
def test_it_fits(kind):
    check_policy(moved(made(kind)))


@pytest.mark.parametrize("kind", [Same, RecencyAlone])
def test_some_start_from_recency(kind):
    found = candidates()
    kept, last = (
        Greedy().choose(policy.score(found, fake_signals(found)), found, 3)
        for policy in (made(kind), Last())
    )
    assert torch.equal(kept, last)


@pytest.mark.parametrize("kind", [RandomStart, NoAges])
def test_others_start_where_the_seed_says(kind):
    found = candidates()
    assert torch.equal(scores(made(kind), found), scores(made(kind), found))
    assert not torch.equal(scores(made(kind), found), scores(made(kind, seed=1), found))
    assert made(kind).network.slope == 0


def test_the_same_is_what_learned_is():
    inside = SetNetwork(dim=4, center=3.5, generator=torch.Generator().manual_seed(7))
    for name, value in made(Same, seed=7).network.state_dict().items():
        assert torch.equal(value, inside.state_dict()[name]), name


@pytest.mark.parametrize(("kind", "sees"), [(Same, True), (RandomStart, True), (NoAges, False)])
def test_who_sees_ages(kind, sees):
    found, policy = candidates(), moved(made(kind))
    assert torch.equal(scores(policy, found), scores(policy, ageless(found))) is not sees


def test_beside_the_slope_it_sees_none():
    found, policy = candidates(), moved(made(RecencyAlone))
    assert not torch.equal(scores(policy, found), scores(policy, ageless(found)))
    with torch.no_grad():
        policy.network.slope.zero_()
    assert torch.equal(scores(policy, found), scores(policy, ageless(found)))
