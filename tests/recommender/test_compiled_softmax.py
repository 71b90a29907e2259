"""The softmax over all items by compiled loops: what the recommender says itself, in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad

pytest.importorskip("numba")

from dips.credit.adjoint import loss_and_adjoint
from dips.kernels import dispatch
from dips.recommender.base import Evidence
from dips.recommender.compiled_softmax import (
    compiled_adjoint,
    has_compiled_softmax,
    scores,
    total_loss,
)
from dips.recommender.dot import DotProduct
from dips.recommender.losses import FullSoftmax, SquaredError

ROWS, ITEMS, ENTRIES = 11, 40, 3
NO_ITEMS = torch.zeros(ROWS, 0, dtype=torch.int64)
KINDS = pytest.mark.parametrize(
    "kind", [{}, {"repeat_feature": True}, {"recency_decay": True, "tie_embeddings": False}]
)


def _model(**settings: bool) -> DotProduct:
    generator = torch.Generator().manual_seed(3)
    model = DotProduct(
        loss=FullSoftmax(), items=ITEMS, dim=6, inner_lr=0.4, prior_penalty=0.1, **settings
    )
    with torch.no_grad():
        for value in model.parameters():
            value += 0.5 * torch.randn(value.shape, generator=generator)
    return model


def _past() -> tuple[Evidence, Tensor, Tensor]:
    """Sketches, one slot empty, what is predicted from them, and how much it counts."""
    generator = torch.Generator().manual_seed(4)
    item = torch.randint(ITEMS, (ROWS, ENTRIES), generator=generator)
    weight = torch.ones(ROWS, ENTRIES)
    weight[2, 0] = 0.0
    age = torch.randint(20, (ROWS, ENTRIES), generator=generator).float()
    slots = torch.full((ROWS,), 9)
    often = torch.randint(1, 5, (ROWS, ENTRIES), generator=generator).float()
    evidence = Evidence(item, torch.ones_like(weight), weight, slots, age, often)
    target = torch.randint(ITEMS, (ROWS,), generator=generator)
    return evidence, target, torch.rand(ROWS, generator=generator)


def _exact(evidence: Evidence) -> Evidence:
    item, rating, weight, slots, *rest = evidence
    return Evidence(
        item, rating.double(), weight.double(), slots, *(each.double() for each in rest)
    )


def _close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-4)


def test_supported_recommenders(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dot product with the whole softmax, in float32, where numba is installed."""
    assert has_compiled_softmax(_model())
    assert not has_compiled_softmax(_model().double())
    assert not has_compiled_softmax(DotProduct(loss=SquaredError(), items=ITEMS, dim=6))
    monkeypatch.setattr(dispatch, "installed", lambda _: False)
    assert not has_compiled_softmax(_model())


@KINDS
def test_gradients_in_all_parameters(kind: dict[str, bool]) -> None:
    """Through weights that fade and entries of items' own."""
    model, (evidence, target, mass) = _model(**kind), _past()
    slow, exact = _model(**kind).double(), _exact(evidence)

    def plain(parameters: dict[str, Tensor]) -> Tensor:
        def task(m: DotProduct) -> Tensor:
            losses = m.losses(m.read(exact), target[:, None], exact.rating[:, :1])[:, 0]
            return (losses * mass).sum()

        result: Tensor = functional_call(slow, parameters, (task,))
        return result

    def fast(parameters: dict[str, Tensor]) -> Tensor:
        def task(m: DotProduct) -> Tensor:
            return total_loss(m, evidence, target, mass, NO_ITEMS)

        result: Tensor = functional_call(model, parameters, (task,))
        return result

    wanted = grad(plain)({name: value.detach() for name, value in slow.named_parameters()})
    found = grad(fast)({name: value.detach() for name, value in model.named_parameters()})
    for name, gradient in wanted.items():
        assert gradient.any()
        _close(found[name], gradient)


@KINDS
def test_effects_are_those_of_the_adjoint(kind: dict[str, bool]) -> None:
    """Losses too."""
    model, (evidence, target, mass) = _model(**kind), _past()
    loss, pull, common, _ = compiled_adjoint(model, evidence, target, NO_ITEMS)
    wanted, effect = loss_and_adjoint(
        _model(**kind).double(), _exact(evidence), target, mass.double()
    )
    for found, right in zip((loss, pull, common), (wanted, *effect), strict=True):
        _close(found, right)


def test_effects_where_what_was_read_is_struck_out() -> None:
    """The same as the adjoint's, with one that came twice and one that is predicted."""
    model, (evidence, target, mass) = _model(recency_decay=True, tie_embeddings=False), _past()
    evidence.item[0, 1], target[1] = evidence.item[0, 0], evidence.item[1, 2]
    slow = copy.deepcopy(model).double()
    model.masks_sketch = slow.masks_sketch = True
    loss, effect = loss_and_adjoint(model, evidence, target, mass)
    wanted, right = loss_and_adjoint(slow, _exact(evidence), target, mass.double())
    _close(loss, wanted)
    for found, field in zip(effect, right, strict=True):
        _close(found, field.double())
    slow.masks_sketch = False
    plain, _ = loss_and_adjoint(slow, _exact(evidence), target, mass.double())
    assert bool((wanted < plain).all())


@KINDS
def test_scores_are_those_of_the_recommender(kind: dict[str, bool]) -> None:
    """After reading."""
    model, (evidence, _, _) = _model(**kind), _past()
    slow = _model(**kind).double()
    with torch.no_grad():
        wanted = slow.predict_all(slow.read(_exact(evidence)))
        _close(scores(model, evidence), wanted)
