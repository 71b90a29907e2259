"""Two GRU layers, one for the session and one for the sketch, and scores from both."""

from __future__ import annotations

import torch
from torch import Tensor

from dips.recommender.base import Evidence
from dips.recommender.losses import FullSoftmax
from dips.recommender.session import SessionGRU


def _model(**more: bool) -> SessionGRU:
    generator = torch.Generator().manual_seed(1)
    model = SessionGRU(items=6, loss=FullSoftmax(), dim=3, generator=generator, **more)
    model = model.double().requires_grad_(False)
    for parameter in model.parameters():
        parameter += torch.randn(parameter.shape, generator=generator) / 5
    return model


def _evidence(items: list[list[int]]) -> Evidence:
    """-1 is an empty place."""
    item = torch.tensor(items)
    weight = (item >= 0).double()
    return Evidence.new(item.clamp_min(0), weight, weight, weight.sum(1).long())


def _read(model: SessionGRU, *items: int) -> tuple[Tensor, Tensor]:
    """Return the state of each layer after these items."""
    now, past = model.user_prior[None].chunk(2, 1)
    vectors = model.vectors[torch.tensor(items, dtype=torch.int64)][None]
    weight = torch.ones(1, len(items)).double()
    return model.session_layer.read(now, vectors, weight), model.sketch_layer.read(
        past, vectors, weight
    )


def test_the_last_three_places_are_the_session() -> None:
    model = _model()
    read = model.read(_evidence([[3, 1, -1, 4, 2, -1], [0, 2, 5, -1, -1, -1]]))
    first = torch.cat([_read(model, 4, 2)[0], _read(model, 3, 1)[1]], 1)
    second = torch.cat([_read(model)[0], _read(model, 0, 2, 5)[1]], 1)
    torch.testing.assert_close(read, torch.cat([first, second]))


def test_without_a_sketch_its_state_is_the_prior() -> None:
    model = _model()
    read = model.read(_evidence([[4, 2, 1]]))
    assert torch.equal(read[:, 3:], model.user_prior[None, 3:])
    torch.testing.assert_close(read[:, :3], _read(model, 4, 2, 1)[0])
    nothing = model.read(_evidence([[-1, -1, -1]]))
    assert torch.equal(nothing, model.user_prior[None])


def test_both_states_score() -> None:
    model = _model()
    user = model.read(_evidence([[3, 1, 4, 2, -1]]))
    now, past = user[0].chunk(2)
    expected = torch.stack(
        [
            model.vectors[i] @ now
            + (model.vectors[i] @ model.sketch_projection) @ past
            + model.bias[i, 0]
            for i in range(6)
        ]
    )[None]
    torch.testing.assert_close(model.predict_all(user), expected)
    items = torch.tensor([[5, 0]])
    torch.testing.assert_close(model.predict(user, items), expected.gather(1, items))
    torch.testing.assert_close(model.predict_some(user, items[0]), expected[:, items[0]])


def test_items_of_session_and_sketch_are_filtered() -> None:
    model = _model(filter_sketch=True)
    scores = model.predict_all(model.read(_evidence([[3, -1, 4, 2, -1]])))[0]
    assert set(scores.argsort()[:3].tolist()) == {2, 3, 4}


def test_cosines_ignore_norms_of_inputs_and_outputs() -> None:
    past = _evidence([[3, 1, 4, 2, -1]])
    for cosine in (True, False):
        model, longer = _model(cosine=cosine), _model(cosine=cosine)
        longer.vectors.mul_(torch.linspace(1, 4, 6)[:, None])
        found = [each.predict_all(each.read(past)) for each in (model, longer)]
        assert torch.allclose(*found, atol=2e-3) == cosine


def test_biases_of_both_layers_have_no_weight_decay() -> None:
    model = _model()
    names = set(dict(model.named_parameters()))
    for layer in ("session_layer", "sketch_layer"):
        biases = {f"{layer}.input_bias", f"{layer}.state_bias"}
        assert biases <= set(model.no_weight_decay) & names
