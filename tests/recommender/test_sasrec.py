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


def test_entries_of_weight_zero_do_not_matter() -> None:
    model = _model()
    weight = torch.tensor([[0.0, 1, 0, 1, 1, 0, 0], [1.0, 1, 0, 0, 0, 0, 1]])
    read = model.read(_evidence(ITEMS, weight))
    torch.testing.assert_close(read[:1], model.read(_evidence(torch.tensor([[1, 1, 5]]))))
    torch.testing.assert_close(read[1:], model.read(_evidence(torch.tensor([[1, 5, 3]]))))


def test_reading_can_be_differentiated_in_the_weights() -> None:
    model = _model()
    weight = torch.rand(2, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert gradcheck(lambda z: model.read(_evidence(ITEMS, z)), (weight + 0.1).requires_grad_())
    faint = model.read(_evidence(ITEMS, torch.tensor([1.0, 1, 1, 1, 1, 1, 1e-9]).expand(2, -1)))
    torch.testing.assert_close(faint, model.read(_evidence(ITEMS[:, :-1])))


def test_dropout_applies_to_inputs_branches_and_states() -> None:
    model, seen = _model(), []

    def drop(value: Tensor) -> Tensor:
        seen.append(tuple(value.shape))
        return value * 0

    assert not model.states(ITEMS, drop).any()
    assert seen == [(2, 7, 4)] * 5 + [(2, 8, 4)]
