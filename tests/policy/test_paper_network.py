"""The paper's network against a dense one with M inputs: dropout, grid, dropped candidates."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

from dips.numerics import fixed_point
from dips.numerics.hashing import text_keys
from dips.policy.paper_network import PaperNetwork
from dips.sketch.records import Candidates
from dips.sketch.signals import Signals
from dips.testing import check_policy, random_candidates

ITEMS = 8


def _network(seed: int = 0, hidden: int = 16, dropout: float = 0.0) -> PaperNetwork:
    generator = torch.Generator().manual_seed(seed)
    return PaperNetwork(items=ITEMS, hidden=hidden, dropout=dropout, generator=generator).double()


def _many(users: int, seed: int = 0) -> Candidates:
    return random_candidates(users=users, size=3, period=2, items=ITEMS, seed=seed)[1]


def _dense(network: PaperNetwork) -> nn.Sequential:
    """Return the network in torch's own layers."""
    hidden = len(network.input_bias)
    layers = [nn.Linear(ITEMS, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, ITEMS)]
    weights = [network.input_weight.T, network.hidden.weight, network.output_weight]
    biases = [network.input_bias, network.hidden.bias, network.output_bias[:, 0]]
    with torch.no_grad():
        for layer, weight, bias in zip(layers, weights, biases, strict=True):
            layer.double()
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


def _dense_scores(dense: nn.Sequential, candidates: Candidates, weight: Tensor) -> Tensor:
    values = torch.where(candidates.present, weight * candidates.rating, 0.0)
    wide = torch.zeros(len(values), ITEMS).double().scatter_add(1, candidates.item, values)
    scores: Tensor = dense(wide).gather(1, candidates.item)
    return scores


def _weight(candidates: Candidates) -> Tensor:
    draw = torch.rand(candidates.position.shape, generator=torch.Generator().manual_seed(7))
    return draw.double().masked_fill(draw < 0.2, 0.0).requires_grad_()


@pytest.mark.parametrize("seed", range(3))
def test_it_equals_the_dense_network(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_point, "quantize", lambda value, bits: value.double())
    network, candidates = _network(seed), _many(40, seed)
    dense, weight = _dense(network), _weight(candidates)
    assert bool((candidates.item[:, :, None] == candidates.item[:, None, :]).sum() > 300)  # repeats
    gradient = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)).double()
    gradient = gradient * candidates.present
    ours = network.score_weighted(candidates, Signals(), weight)
    theirs = _dense_scores(dense, candidates, weight)
    torch.testing.assert_close(ours * candidates.present, theirs * candidates.present,
                               atol=1e-12, rtol=0)  # fmt: skip
    own = [network.input_weight, network.input_bias, network.hidden.weight, network.hidden.bias,
           network.output_weight, network.output_bias, weight]  # fmt: skip
    other = [*dense.parameters(), weight]
    mine = torch.autograd.grad((ours * gradient).sum(), own)
    slopes = torch.autograd.grad((theirs * gradient).sum(), other)
    for left, right in zip(mine, slopes, strict=True):
        found = left.T if left.shape != right.shape and left.T.shape == right.shape else left
        torch.testing.assert_close(found.reshape(right.shape), right, atol=1e-12, rtol=0)


def test_on_the_grid_it_is_close_to_the_dense_network() -> None:
    network, candidates = _network(hidden=128), _many(40)
    weight = candidates.present.double()
    ours = network.score(candidates, Signals())
    theirs = _dense_scores(_dense(network), candidates, weight)
    difference = (ours - theirs).abs()[candidates.present]
    assert 0 < float(difference.detach().max()) < 0.01


def test_the_gradient_in_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_point, "quantize", lambda value, bits: value.double())
    network, candidates = _network(), _many(4)
    weight = _weight(candidates)
    assert gradcheck(lambda w: network.score_weighted(candidates, Signals(), w), weight)


def test_candidates_of_weight_zero_have_scores_and_no_effect() -> None:
    network, candidates = _network(), _many(50)
    dropped = torch.rand(50, 5, generator=torch.Generator().manual_seed(2)) < 0.3
    weight = (candidates.present & ~dropped).double()
    with_dropped_candidates = network.score_weighted(candidates, Signals(), weight)
    gone = candidates._replace(position=candidates.position.masked_fill(dropped, -1))
    without = network.score(gone, Signals())
    assert torch.equal(with_dropped_candidates[gone.present], without[gone.present])
    assert bool(with_dropped_candidates[candidates.present].isfinite().all())


def test_dropout_is_a_function_of_user_and_time() -> None:
    users, hidden = 4000, 16
    network, (_, one) = (
        _network(hidden=hidden, dropout=0.25),
        random_candidates(users=1, items=ITEMS),
    )
    many = Candidates(*(field.expand(users, *field.shape[1:]) for field in one))
    many = many._replace(key=text_keys(map(str, range(users))))
    units = torch.ones(users, hidden).double()
    first, second = (network._dropout(units, many, layer) for layer in (1, 2))
    assert set(first.unique().tolist()) == {0.0, 1 / 0.75}
    assert abs(float(first.mean()) - 1) < 0.01
    assert bool(((first == 0).double().mean(0) - 0.25).abs().max() < 0.04)
    both = ((first == 0) & (second == 0)).double().mean()
    assert abs(float(both) - 0.25**2) < 0.01  # the layers are independent
    assert torch.equal(network._dropout(units, many, 1), first)
    later = many._replace(seen=many.seen + 1)
    assert not torch.equal(network._dropout(units, later, 1), first)
    alone = Candidates(*(field[7:8] for field in many))
    assert torch.equal(network.score(alone, Signals()), network.score(many, Signals())[7:8])
    still = network.eval().score(many, Signals())
    assert bool((still == still[:1]).all())
    assert torch.equal(still, _network(hidden=hidden).score(many, Signals()))


@pytest.mark.parametrize("training", [False, True])
def test_scores_do_not_depend_on_the_batch(training: bool) -> None:
    network = _network(hidden=128, dropout=0.1).float().train(training)
    candidates = _many(1000)
    together = network.score(candidates, Signals())
    for piece in (1, 7):
        parts = [
            network.score(Candidates(*(f[low : low + piece] for f in candidates)), Signals())
            for low in range(0, 70, piece)
        ]
        assert torch.equal(torch.cat(parts), together[:70])
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
    shuffled = network.score(Candidates(*(field[order] for field in candidates)), Signals())
    assert torch.equal(shuffled, together[order])


def test_plain_float32_does_depend_on_the_batch() -> None:
    """Or the test above could not fail."""
    network, candidates = _network(hidden=128), _many(1000)
    dense = _dense(network).float()

    def scores(part: Candidates) -> Tensor:
        wide = torch.zeros(len(part.item), ITEMS).scatter_add(1, part.item, part.rating)
        result: Tensor = dense(wide)
        return result

    together = scores(candidates)
    alone = torch.cat(
        [scores(Candidates(*(f[row : row + 1] for f in candidates))) for row in range(100)]
    )
    assert not torch.equal(alone, together[:100])


def test_it_passes_all_checks() -> None:
    check_policy(PaperNetwork(items=ITEMS, generator=torch.Generator().manual_seed(3)))


def test_initial_parameters_depend_on_the_seed() -> None:
    state = torch.random.get_rng_state()
    one, two, other = PaperNetwork(items=50), PaperNetwork(items=50), _network(1)
    assert torch.equal(one.input_weight, two.input_weight)
    assert not torch.equal(other.input_weight, _network(2).input_weight)
    assert one.input_weight.shape == one.output_weight.shape == (50, 128)
    assert one.hidden.weight.shape == (128, 128)
    assert float(one.input_weight.detach().abs().max()) <= 50**-0.5
    assert torch.equal(torch.random.get_rng_state(), state)  # nothing global was touched
