"""A GRU reads like torch's own cell, skips what is not there, and knows all prefixes at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

from dips.recommender.base import Evidence
from dips.recommender.gru import GRU
from dips.recommender.losses import FullSoftmax

ITEMS = torch.tensor([[3, 1, 4], [1, 5, 2]])


def _model(tied: bool = True) -> GRU:
    model = GRU(
        items=6,
        loss=FullSoftmax(),
        dim=4,
        tie_embeddings=tied,
        generator=torch.Generator().manual_seed(1),
    )
    model = model.double().requires_grad_(False)
    model.user_prior.copy_(torch.tensor([0.1, -0.3, 0.2, 0.5]))
    model.bias.copy_(torch.linspace(-1, 1, 6)[:, None])
    return model


def _evidence(items: Tensor, weight: Tensor | None = None) -> Evidence:
    weight = torch.ones(items.shape) if weight is None else weight
    return Evidence.new(items, torch.ones(items.shape), weight.double(), (weight > 0).sum(1))


def _cell(model: GRU) -> nn.GRUCell:
    cell = nn.GRUCell(4, 4).double()
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    layer = model.layer
    own = (layer.input_weight, layer.state_weight, layer.input_bias, layer.state_bias)
    cell.load_state_dict(dict(zip(names, own, strict=True)))
    return cell.requires_grad_(False)


def test_states_equal_those_of_a_gru_cell() -> None:
    model = _model()
    cell, state = _cell(model), model.user_prior.expand(2, -1)
    states = model.states(ITEMS)
    for step in range(4):
        torch.testing.assert_close(states[:, step], state)
        torch.testing.assert_close(model.read(_evidence(ITEMS[:, :step])), state)
        if step < 3:
            state = cell(model.vectors[ITEMS[:, step]], state)


def test_empty_histories() -> None:
    model = _model()
    nothing = model.states(torch.zeros(2, 0, dtype=torch.int64))
    assert torch.equal(nothing, model.user_prior.expand(2, 1, -1))


def test_weights_scale_the_steps_of_the_state() -> None:
    model = _model()
    weight = torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    read = model.read(_evidence(ITEMS, weight))
    torch.testing.assert_close(read[:1], model.read(_evidence(torch.tensor([[3, 4]]))))
    torch.testing.assert_close(read[1:], model.read(_evidence(torch.tensor([[1, 5]]))))
    first = ITEMS[:, :1]
    half = model.read(_evidence(first, torch.full((2, 1), 0.5)))
    whole = model.read(_evidence(first))
    torch.testing.assert_close(half, (whole + model.user_prior) / 2)


def test_reading_can_be_differentiated_in_the_weights() -> None:
    model = _model()
    weight = torch.rand(2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert gradcheck(lambda z: model.read(_evidence(ITEMS, z)), weight.requires_grad_())


@pytest.mark.parametrize("tied", [True, False])
def test_scores_are_the_state_times_the_output_vectors(tied: bool) -> None:
    model = _model(tied)
    state = model.read(_evidence(ITEMS))
    table = model.vectors if tied else model.output_vectors
    expected = (state[:, None, :] * table).sum(2) + model.bias[:, 0]
    torch.testing.assert_close(model.predict_all(state), expected)
    torch.testing.assert_close(model.predict(state, ITEMS), expected.gather(1, ITEMS))
    torch.testing.assert_close(model.predict_some(state, ITEMS[0]), expected[:, ITEMS[0]])
    assert (set(dict(model.named_parameters())) >= {"output_vectors"}) is not tied


def test_dropout_applies_to_inputs_and_states() -> None:
    model, seen = _model(), []

    def drop(value: Tensor) -> Tensor:
        seen.append(tuple(value.shape))
        return value * 0

    assert not model.states(ITEMS, drop).any()
    assert seen == [(2, 3, 4), (2, 4, 4)]
