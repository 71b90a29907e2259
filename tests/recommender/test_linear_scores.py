"""Cosine scores against a slow form, and dot products."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dips.recommender import repeat_scores
from dips.recommender.base import Evidence
from dips.recommender.gru import GRU
from dips.recommender.linear_scores import LinearScores
from dips.recommender.linearised import LinearisedDotProduct
from dips.recommender.losses import FullSoftmax
from dips.recommender.sasrec import SASRec
from dips.recommender.sequential import Sequential

FORMS = [GRU, SASRec]
ITEMS = torch.tensor([[3, 1, 4, 1, 5], [2, 2, 0, 4, 3]])


def _model(form: type[LinearScores], **settings: bool) -> LinearScores:
    generator = torch.Generator().manual_seed(1)
    model = form(items=6, loss=FullSoftmax(), dim=4, generator=generator, **settings)
    model = model.double().requires_grad_(False)
    model.bias.copy_(torch.linspace(-1, 1, 6)[:, None])
    return model


def _evidence(items: Tensor) -> Evidence:
    once = torch.ones(items.shape).double()
    age = torch.arange(items.shape[1]).flip(0).expand_as(items).double()
    return Evidence(items, once, once, once.sum(1).long(), age, once)


@pytest.mark.parametrize("form", FORMS)
def test_scores_are_cosines_times_the_logit_scale(form: type[LinearScores]) -> None:
    model = _model(form, cosine=True)
    model.logit_scale.fill_(1.3)
    user = model.read(_evidence(ITEMS))
    expected = torch.stack(
        [
            torch.tensor(1.3).double().exp()
            * functional.cosine_similarity(user, model.vectors[item][None])
            + model.bias[item]
            for item in range(6)
        ],
        1,
    )
    close = {"atol": 2e-3, "rtol": 0}  # lengths are not quite 0 where nothing is
    torch.testing.assert_close(model.predict_all(user), expected, **close)
    some = torch.tensor([5, 0])
    torch.testing.assert_close(model.predict_some(user, some), expected[:, some], **close)
    torch.testing.assert_close(model.predict(user, ITEMS), expected.gather(1, ITEMS), **close)


@pytest.mark.parametrize("form", FORMS)
def test_only_cosines_ignore_norms(form: type[LinearScores]) -> None:
    for cosine in (True, False):
        model, longer = _model(form, cosine=cosine), _model(form, cosine=cosine)
        longer.vectors.mul_(torch.linspace(1, 4, 6)[:, None])
        found = [each.predict_all(each.read(_evidence(ITEMS))) for each in (model, longer)]
        assert torch.allclose(*found, atol=2e-3) == cosine


@pytest.mark.parametrize("form", FORMS)
def test_prefixes_equal_sketches_with_the_same_entries(form: type[LinearScores]) -> None:
    model = _model(form, cosine=True, filter_sketch=True)
    assert isinstance(model, Sequential)
    found = model.states_after(ITEMS, torch.tensor([0, 1, 1]), torch.tensor([0, 3, 5]))
    for row, (user, many) in enumerate([(0, 0), (1, 3), (1, 5)]):
        sketch = model.read(_evidence(ITEMS[user : user + 1, :many]))
        same = [model.predict_all(state) for state in (found[row : row + 1], sketch)]
        torch.testing.assert_close(*same)


@pytest.mark.parametrize("form", FORMS)
def test_an_empty_sketch_has_finite_gradients(form: type[LinearScores]) -> None:
    """The state before the first item is 0 at the start, and points nowhere."""
    model = _model(form, cosine=True).requires_grad_(True)
    nothing = model.read(_evidence(ITEMS[:, :0]))
    model.losses(nothing, ITEMS, torch.ones_like(ITEMS)).sum().backward()
    assert model.user_prior.grad is not None
    assert 0 < model.user_prior.grad.abs().max() < 1e5


def test_policies_see_the_input_vectors() -> None:
    model = _model(GRU, cosine=True)
    assert torch.equal(model.embedding(ITEMS), model.input_vectors(ITEMS))
    torch.testing.assert_close(
        model.input_vectors(ITEMS),
        functional.normalize(model.vectors, dim=1)[ITEMS],
        atol=2e-3,
        rtol=0,
    )
    plain = _model(GRU)
    assert torch.equal(plain.input_vectors(ITEMS), plain.vectors[ITEMS])


def test_the_logit_scale_has_no_weight_decay() -> None:
    for form in FORMS:
        model = _model(form, cosine=True)
        assert "logit_scale" in set(dict(model.named_parameters())) & set(form.no_weight_decay)
        assert "logit_scale" not in dict(_model(form).named_parameters())


def test_too_many_items_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeat_scores, "MAX_ITEMS", 10)
    GRU(items=11, loss=FullSoftmax(), dim=4)
    with pytest.raises(
        ValueError, match="11 items: repeat_feature and filter_sketch support at most 10"
    ):
        GRU(items=11, loss=FullSoftmax(), dim=4, filter_sketch=True)
    LinearisedDotProduct(items=11, loss=FullSoftmax())
    with pytest.raises(ValueError, match="11 items: repeat_feature"):
        LinearisedDotProduct(items=11, loss=FullSoftmax(), repeat_feature=True)
