"""Side information in the networks of policies, against dense references written differently."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dips.data.side_information import MIDDLE, ColumnEncoding, SideInformation
from dips.numerics import fixed_point
from dips.policy.layers import SideInputs
from dips.policy.network import Network
from dips.policy.paper_network import PaperNetwork
from dips.policy.set_network import SetNetwork
from dips.policy.stacked import StackedPolicies
from dips.sketch.records import Candidates
from dips.sketch.signals import Signals
from dips.testing import check_policy, fake_signals, random_candidates

ITEMS, DIM = 8, 4
WEATHER = ColumnEncoding("weather", 12, names=("fog", "rain", "sun"))
PRICE = ColumnEncoding("price", 14)
TABLE = np.array([[0, 2], [1, -1], [-1, -1], [2, 1], [0, -1], [1, 0], [2, -1], [-1, -1]])
SIDES = SideInformation(kinds=3, width=2, time=True, columns=(WEATHER, PRICE), table=TABLE)
WITHOUT = SideInformation(columns=(PRICE,))


def _many(users: int, seed: int = 0) -> Candidates:
    """Return candidates with repeated items and side information."""
    candidates = random_candidates(users=users, size=3, period=2, items=ITEMS, seed=seed)[1]
    generator = torch.Generator().manual_seed(seed)
    weather = torch.randint(0, 4, candidates.item.shape, generator=generator)
    price = torch.randint(0, 2 * MIDDLE, candidates.item.shape, generator=generator)
    side = (weather << WEATHER.shift) | (price << PRICE.shift)
    return candidates._replace(side=torch.where(candidates.present, side, 0))


def _network(kind: str, seed: int = 0, side: SideInformation = SIDES) -> Network:
    generator = torch.Generator().manual_seed(seed)
    if kind == "paper":
        return PaperNetwork(
            items=ITEMS, hidden=16, dropout=0.0, side=side, generator=generator
        ).eval()
    network = SetNetwork(dim=DIM, hidden=16, items=ITEMS, side=side, generator=generator)
    with torch.no_grad():
        network.output.copy_(torch.randn(network.output.shape, generator=generator))
    return network


def _expected_features(
    inputs: SideInputs, candidates: Candidates, row: int, slot: int, dim: int
) -> list[Any]:
    """Return the features of one candidate, one by one."""
    if candidates.position[row, slot] < 0:
        return [0.0] * inputs.width
    rows = inputs.vectors.detach().double()
    kinds = [rows[code] for code in TABLE[int(candidates.item[row, slot])] if code >= 0]
    side = int(candidates.side[row, slot])
    code, number = (side >> 12) % 4, (side >> 14) % 4096
    weather = rows[3 + code - 1] if code else torch.zeros(dim)
    price = (number - 2048) / 256 if number else 0.0
    return [*sum(kinds, torch.zeros(dim)).tolist(), *weather.tolist(), price]


@pytest.mark.parametrize("dim", [1, 4])
def test_features_equal_those_of_a_loop(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_point, "quantize", lambda value, bits: value.double())
    inputs = SideInputs(SIDES, ITEMS, dim, torch.Generator().manual_seed(0))
    candidates = _many(40)
    found = inputs(candidates)
    assert inputs.width == found.shape[2] == 2 * dim + 1
    expected = [
        [_expected_features(inputs, candidates, row, slot, dim) for slot in range(5)]
        for row in range(40)
    ]
    torch.testing.assert_close(found.detach(), torch.tensor(expected).double(), atol=1e-6, rtol=0)


def test_without_side_information_there_are_no_parameters() -> None:
    inputs = SideInputs(SideInformation(), ITEMS, 8, torch.Generator())
    assert inputs(_many(3)).shape == (3, 5, 0)
    assert not inputs.state_dict()
    plain = PaperNetwork(items=ITEMS, hidden=16)
    assert [name for name, _ in plain.named_parameters()] == [
        "input_weight", "input_bias", "output_weight", "output_bias", "hidden.weight", "hidden.bias"
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
def test_the_papers_network_equals_a_dense_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of M for ratings, categories, further columns and ages, one beside the other."""
    monkeypatch.setattr(fixed_point, "quantize", lambda value, bits: value.double())
    network, candidates = _network("paper", seed).double(), _many(40, seed)
    assert isinstance(network, PaperNetwork)
    blocks = network.blocks
    assert blocks == 4
    dense = nn.Linear(ITEMS * (1 + blocks), 16).double()
    more = network.side_weight.detach().view(ITEMS, blocks, 16)
    with torch.no_grad():
        dense.weight.copy_(torch.cat([network.input_weight, *more.unbind(1)]).T)
        dense.bias.copy_(network.input_bias)
    draw = torch.rand(candidates.position.shape, generator=torch.Generator().manual_seed(7))
    weight = draw.double().requires_grad_()
    features = network.side(candidates).detach()
    age = torch.where(candidates.present, candidates.age, 0).double().log1p()
    values = [candidates.rating.double(), *features.unbind(2), age]
    wide = torch.cat([_spread(candidates, weight * value) for value in values], 1)
    hidden = network.hidden(dense(wide).relu()).relu()
    theirs = (hidden @ network.output_weight.T + network.output_bias[:, 0]).gather(
        1, candidates.item
    )
    ours = network.score_weighted(candidates, Signals(), weight)
    there = candidates.present
    torch.testing.assert_close(ours[there], theirs[there], atol=1e-12, rtol=0)
    mine, slope = (
        torch.autograd.grad(scores[there].sum(), weight, retain_graph=True)[0]
        for scores in (ours, theirs)
    )
    torch.testing.assert_close(mine, slope, atol=1e-12, rtol=0)


def _spread(candidates: Candidates, values: Tensor) -> Tensor:
    """[users, M] values by item; repeats of an item add up."""
    values = torch.where(candidates.present, values, 0.0)
    return torch.zeros(len(values), ITEMS).double().scatter_add(1, candidates.item, values)


@pytest.mark.parametrize("side", [SIDES, WITHOUT], ids=["all", "price"])
@pytest.mark.parametrize("kind", ["paper", "set"])
def test_networks_pass_all_checks(kind: str, side: SideInformation) -> None:
    check_policy(_network(kind, side=side))


@pytest.mark.parametrize("kind", ["paper", "set"])
def test_side_information_changes_scores_and_the_batch_does_not(kind: str) -> None:
    network, candidates = _network(kind), _many(200)
    together = _score(network, candidates)
    for column in (WEATHER, PRICE):
        other = candidates._replace(side=candidates.side ^ (1 << column.shift))
        assert not torch.equal(_score(network, other), together)
    with torch.no_grad():
        for piece in (1, 7):
            parts = [
                _score(network, Candidates(*(f[low : low + piece] for f in candidates)))
                for low in range(0, 70, piece)
            ]
            assert torch.equal(torch.cat(parts), together[:70])
    stacked = StackedPolicies.of([network, _network(kind, 5)])
    both = Candidates(*(torch.cat([field, field]) for field in candidates))
    side_by_side = stacked.score(both, fake_signals(both, arrivals=2))
    assert torch.equal(side_by_side[:200], together)


def _score(network: Network, candidates: Candidates) -> Tensor:
    with torch.no_grad():
        return network.score(candidates, fake_signals(candidates, arrivals=2))


@pytest.mark.parametrize("kind", ["paper", "set"])
def test_every_parameter_has_a_gradient(kind: str) -> None:
    network, candidates = _network(kind), _many(200)
    gradient = torch.randn(200, 5, generator=torch.Generator().manual_seed(0)).double()
    scores = network.score(candidates, fake_signals(candidates, arrivals=2))
    (scores * gradient * candidates.present).sum().backward()
    still = [
        name for name, value in network.named_parameters() if not bool((value.grad != 0).any())
    ]
    assert not still
    assert bool((network.side.vectors.grad != 0).all())  # type: ignore[union-attr, operator]


def test_only_the_set_network_distinguishes_duplicates() -> None:
    """The paper's network has one score for all events of an item."""
    candidates = _many(50)
    candidates = candidates._replace(item=torch.where(candidates.present, 3, 0))
    paper, ours = _score(_network("paper"), candidates), _score(_network("set"), candidates)
    for row in range(50):
        there = candidates.present[row]
        assert len(paper[row][there].unique()) == 1
        assert len(ours[row][there].unique()) == int(there.sum())
