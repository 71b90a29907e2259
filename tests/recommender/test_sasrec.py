"""Self-attention reads as its formula says, backwards from the newest, in any window."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from dips.recommender import sasrec as attention
from dips.recommender.base import Evidence
from dips.recommender.losses import FullSoftmax
from dips.recommender.sasrec import SASRec

ITEMS = torch.tensor([[3, 1, 4, 1, 5, 2, 0], [1, 5, 2, 2, 0, 4, 3]])


def _model(items: int = 6) -> SASRec:
    generator = torch.Generator().manual_seed(1)
    model = SASRec(items=items, loss=FullSoftmax(), dim=4, generator=generator)
    model = model.double().requires_grad_(False)
    for parameter in model.parameters():  # nothing stays at a start that hides it
        parameter += torch.randn(parameter.shape, generator=generator) / 5
    return model


def _evidence(items: Tensor, weight: Tensor | None = None) -> Evidence:
    weight = torch.ones(items.shape) if weight is None else weight
    return Evidence.new(items, torch.ones(items.shape), weight.double(), (weight > 0).sum(1))


def _normed(model: SASRec, vector: Tensor, place: int) -> Tensor:
    centered = vector - vector.mean()
    scaled = centered / (centered.square().mean() + 1e-5).sqrt()
    return scaled * model.norm_weight[place] + model.norm_bias[place]


def _literally(model: SASRec, items: Tensor) -> Tensor:
    """The state after a history, one query and one key at a time."""
    flow = [model.vectors[item] * 2 for item in items]  # the root of 4 dimensions
    for layer in range(attention.LAYERS):
        even = [_normed(model, vector, 2 * layer) for vector in flow]
        fresh = []
        for place, vector in enumerate(flow):
            past = range(max(0, place - attention.WINDOW + 1), place + 1)
            match = [
                (even[place] @ model.query[layer]) @ (even[j] @ model.key[layer]) / 2
                + model.distance_bias[layer, place - j]
                for j in past
            ]
            share = torch.stack(match).softmax(0)
            seen = sum(s * (even[j] @ model.value[layer]) for s, j in zip(share, past, strict=True))
            vector = vector + seen
            inner = _normed(model, vector, 2 * layer + 1) @ model.hidden[layer]
            inner = (inner + model.hidden_bias[layer]).relu()
            fresh.append(vector + inner @ model.output[layer] + model.output_bias[layer])
        flow = fresh
    return _normed(model, flow[-1], 2 * attention.LAYERS)


@pytest.mark.parametrize("window", [64, 3, 2, 1])
def test_states_equal_the_formula(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "WINDOW", window)
    model = _model()
    states = model.states(ITEMS)
    torch.testing.assert_close(states[:, 0], model.user_prior.expand(2, -1))
    for step in range(1, ITEMS.shape[1] + 1):
        expected = torch.stack([_literally(model, row[:step]) for row in ITEMS])
        torch.testing.assert_close(states[:, step], expected)
        torch.testing.assert_close(model.read(_evidence(ITEMS[:, :step])), expected)


def test_a_sketch_looks_like_the_end_of_a_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places are counted from the newest: with one layer what lies beyond the window is nothing."""
    monkeypatch.setattr(attention, "WINDOW", 3)
    monkeypatch.setattr(attention, "LAYERS", 1)
    model = _model()
    torch.testing.assert_close(model.states(ITEMS)[:, -1], model.read(_evidence(ITEMS[:, -3:])))


def test_empty_histories() -> None:
    model = _model()
    nothing = torch.zeros(2, 0, dtype=torch.int64)
    prior = model.user_prior.expand(2, -1)
    assert torch.equal(model.states(nothing), prior[:, None])
    assert torch.equal(model.read(_evidence(nothing)), prior)
    assert torch.equal(model.read(_evidence(ITEMS, torch.zeros(2, 7))), prior)


SOME = torch.tensor([[0.0, 1, 0, 1, 1, 0, 0], [1.0, 1, 0, 0, 0, 0, 1]])


@pytest.mark.parametrize("window", [64, 7, 3, 2])
def test_entries_of_weight_zero_do_not_matter(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Distances and the window count the weight between two entries, not the entries."""
    monkeypatch.setattr(attention, "WINDOW", window)
    model = _model()
    read = model.read(_evidence(ITEMS, SOME))
    torch.testing.assert_close(read[:1], model.read(_evidence(torch.tensor([[1, 1, 5]]))))
    torch.testing.assert_close(read[1:], model.read(_evidence(torch.tensor([[1, 5, 3]]))))


@pytest.mark.parametrize("window", [64, 3])
def test_reading_can_be_differentiated_in_the_weights(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any weights, also at 0 and 1, from both sides; the window ends smoothly."""
    monkeypatch.setattr(attention, "WINDOW", window)
    model = _model()
    random = torch.rand(2, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for weight in (random + 0.1, SOME.double(), torch.ones(2, 7).double()):
        read = lambda z: model.read(_evidence(ITEMS, z))  # noqa: E731
        assert gradcheck(read, weight.clone().requires_grad_(), atol=1e-4)


def test_weights_move_the_read_continuously() -> None:
    model = _model()
    faint = model.read(_evidence(ITEMS, torch.tensor([1.0, 1, 1e-9, 1, 1, 1, 1e-9]).expand(2, -1)))
    rest = ITEMS[:, [0, 1, 3, 4, 5]]
    torch.testing.assert_close(faint, model.read(_evidence(rest)))
    half = model.read(_evidence(ITEMS, torch.tensor([1.0, 1, 0.5, 1, 1, 1, 1]).expand(2, -1)))
    assert not torch.allclose(half, model.read(_evidence(ITEMS)), atol=1e-4)


def test_the_slope_of_attention_is_the_change_of_adding_or_removing_a_key() -> None:
    """Also for a key with nearly all of the attention."""
    generator = torch.Generator().manual_seed(0)
    even = torch.tensor([[0.2, 1.0, 0.01, 0.5, 1e-4]]).double()
    value = torch.randn(5, 3, generator=generator).double()

    def mean(weight: Tensor) -> Tensor:
        return attention._mean(attention._linear_in_weight(even, weight), value)[0]

    for others in ([0.0, 0, 0, 0, 1], [1.0, 1, 0, 0, 1], [1.0, 1, 1, 1, 1]):
        weight = torch.tensor([others]).double()
        torch.testing.assert_close(mean(weight), attention._mean(even * weight, value)[0])
        slope = torch.autograd.functional.jacobian(mean, weight)[:, 0]
        for key in range(4):  # the last one is the query itself
            with_it, without = weight.clone(), weight.clone()
            with_it[0, key], without[0, key] = 1, 0
            torch.testing.assert_close(slope[:, key], mean(with_it) - mean(without))


def test_splines_pass_through_the_table_with_central_slopes() -> None:
    table = torch.tensor([0.3, -1.0, 2.0, 2.5, -0.7]).double()
    place = torch.arange(5.0).double().requires_grad_()
    value = attention._interpolated(table, place)
    assert torch.equal(value.detach(), table)
    (slope,) = torch.autograd.grad(value.sum(), place)
    torch.testing.assert_close(slope[1:4], (table[2:] - table[:3]) / 2)
    line = torch.arange(5.0).double()
    between = torch.tensor([1.25, 2.5]).double()
    torch.testing.assert_close(attention._interpolated(line, between), between)


def test_dropout_applies_to_inputs_branches_and_states() -> None:
    model, seen = _model(), []

    def drop(value: Tensor) -> Tensor:
        seen.append(tuple(value.shape))
        return value * 0

    assert not model.states(ITEMS, drop).any()
    assert seen == [(2, 7, 4)] * 5 + [(2, 8, 4)]
