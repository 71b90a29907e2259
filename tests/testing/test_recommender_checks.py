"""Each check of a recommender against a recommender made to fail it; the fakes themselves."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian

from dips.recommender.base import Recommender
from dips.recommender.losses import SquaredError
from dips.testing import RECOMMENDER_CHECKS, check_recommender, fake_signals, random_candidates
from dips.testing import recommenders as checks
from dips.testing.fakes import GRID, item_vectors


class Broken(Recommender):
    """A linear recommender, one of whose methods is replaced."""

    def __init__(self, rate: float = 0.05, **methods):
        super().__init__(items=8, user_dim=4, loss=SquaredError(), inner_lr=rate)
        self.register_buffer("table", item_vectors(torch.arange(8), 4).float())
        self.methods = methods

    def predict(self, user: Tensor, items: Tensor) -> Tensor:
        plain = (self.table[items] * user[:, None, :]).sum(2)
        return self.methods["predict"](self, plain, user) if "predict" in self.methods else plain

    def read(self, evidence, *rounding):
        plain = super().read(evidence, *rounding)
        return self.methods["read"](self, plain, evidence) if "read" in self.methods else plain

    def embedding(self, items):
        plain = self.table[items]
        return self.methods["embed"](self, plain) if "embed" in self.methods else plain

    def loss_gradients(self, *arguments):
        plain = super().loss_gradients(*arguments)
        return plain * self.methods.get("slope", 1.0)


def _with_plain_tensor() -> Broken:
    model = Broken()
    model.plain = torch.ones(2)
    return model


def _with_lost_buffer() -> Broken:
    model = Broken()
    model.register_buffer("lost", torch.ones(2), persistent=False)
    return model


def _with_frozen_parameter() -> Broken:
    model = Broken()
    model.pretrained = nn.Embedding.from_pretrained(torch.ones(8, 4))
    return model


BROKEN = {
    "one_output_per_item-shape": (Broken(predict=lambda m, p, u: p.sum(1)), "returned the shape"),
    "one_output_per_item-inf": (Broken(predict=lambda m, p, u: p / 0), "is not finite"),
    "one_vector_per_item-shape": (
        Broken(embed=lambda m, v: v[:, 0]),
        "embedding returned the shape (4, 4) for items of (4, 3)",
    ),
    "one_vector_per_item-slope": (
        Broken(embed=lambda m, v: v + m.user_prior),
        "return it detached",
    ),
    "ignores_other_rows-rows": (Broken(predict=lambda m, p, u: p + u.sum()), "than in a batch"),
    "ignores_other_rows-items": (
        Broken(predict=lambda m, p, u: p.cumsum(1)),
        "depends on the order of the items",
    ),
    "differentiable_in_the_user": (
        Broken(predict=lambda m, p, u: p.detach() * 0),
        "the inner loop cannot change it",
    ),
    "ignores_empty_entries-prior": (Broken(read=lambda m, p, e: p + 1), "on an empty sketch"),
    "ignores_empty_entries-weights": (
        Broken(read=lambda m, p, e: p + (e.weight.sum() > 0) * e.rating.sum(1, keepdim=True)),
        "entries of weight 0",
    ),
    "ignores_empty_entries-order": (
        Broken(read=lambda m, p, e: p + (e.rating * e.weight)[:, :1]),
        "order of the sketch's entries",
    ),
    "reduces_the_inner_loss": (Broken(rate=-0.05), "does not lower the loss"),
    "closed_forms_agree": (Broken(slope=1.01), "loss_gradients differs from the generic form by"),
    "second_order_gradients": (
        Broken(read=lambda m, p, e: p.detach() + m.user_prior - m.user_prior.detach()),
        "finite differences say",
    ),
    "works_stacked-vmap": (
        Broken(predict=lambda m, p, u: p + m.user_prior.detach().sum().item()),
        "does not work under torch.func.vmap",
    ),
    "works_stacked-state": (
        Broken(predict=lambda m, p, u: p + isinstance(m.user_prior, nn.Parameter)),
        "differently in stacked runs than alone",
    ),
    "ignores_other_users": (
        Broken(predict=lambda m, p, u: p + u.shape[0]),
        "between a batch and a user alone",
    ),
    "has_all_tensors_in_state-plain": (_with_plain_tensor(), "'plain' as a plain attribute"),
    "has_all_tensors_in_state-lost": (_with_lost_buffer(), "save buffer 'lost'"),
    "has_all_tensors_in_state-frozen": (
        _with_frozen_parameter(),
        "the parameter 'pretrained.weight' without a gradient",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_check_fails_with_a_sentence(name: str) -> None:
    model, sentence = BROKEN[name]
    check = getattr(checks, name.split("-")[0])
    with pytest.raises(AssertionError, match=re.escape(sentence)):
        check(model)


def test_every_check_is_broken_once() -> None:
    names = {check.__name__ for check in RECOMMENDER_CHECKS}
    assert {name.split("-")[0] for name in BROKEN} == names


def test_an_unbroken_one_passes() -> None:
    check_recommender(Broken())
    with_empty = Broken()
    with_empty.register_buffer("computed_later", torch.zeros(0, 4), persistent=False)
    check_recommender(with_empty)  # there is nothing to save
    check_recommender(Broken)
    with pytest.raises(AssertionError, match="is not a dips Recommender"):
        check_recommender(dict)  # type: ignore[arg-type]


def test_fake_influences_are_those_of_its_losses() -> None:
    """Against slopes and curvature by automatic differentiation, one user at a time."""
    _, candidates = random_candidates(users=4, size=3, period=2, seed=3)
    signals = fake_signals(candidates)
    reading = signals.read(candidates.present.double())
    for row in range(4):
        vectors, rating = signals.embedding[row], candidates.rating[row].double()
        there = candidates.present[row].double()

        def losses(user: Tensor, vectors: Tensor = vectors, rating: Tensor = rating) -> Tensor:
            return (vectors @ user - rating) ** 2

        user = (there * rating) @ vectors / GRID  # the gradient step of the fake
        torch.testing.assert_close(losses(user), reading.losses()[row])
        slopes = jacobian(losses, user)
        curve = hessian(lambda u, there=there: (losses(u) * there).sum(), user)
        solved = torch.linalg.solve(curve + 0.3 * torch.eye(4).double(), there @ slopes)
        torch.testing.assert_close(-(slopes @ solved), reading.influences(0.3)[row])


def test_random_candidates_look_like_a_refresh() -> None:
    sketch, candidates = random_candidates(users=30, size=3, period=2, seed=1)
    present = candidates.present
    assert bool(present[:, 3:].all())
    assert not bool(present.all())
    position = candidates.position.masked_fill(~present, -1)
    for row, seen in zip(position.tolist(), candidates.seen.tolist(), strict=True):
        there = [place for place in row if place >= 0]
        assert there == sorted(set(there))
        assert there[-1] == seen - 1
    assert torch.equal(candidates.position[:, :3], sketch.position)
    assert int(candidates.repeats.max()) > 1
    one = random_candidates(seed=5, distinct=True)[1]
    for items, there in zip(one.item.tolist(), one.present.tolist(), strict=True):
        kept = [item for item, keep in zip(items, there, strict=True) if keep]
        assert len(set(kept)) == len(kept)


class Least(Recommender):
    """No constructor of its own, one method; a channel per star where the loss wants them."""

    def predict(self, user: Tensor, items: Tensor) -> Tensor:
        vectors = item_vectors(items, user.shape[-1]).to(user.dtype)
        score = self.offset + (vectors * user[:, None, :]).sum(-1)
        slope = torch.linspace(-1, 1, self.loss.channels, dtype=user.dtype)
        return score if self.loss.channels == 1 else score[..., None] * slope


@pytest.mark.parametrize("loss", ["mse", "bce", "cce", "softmax"])
def test_a_class_is_made_as_a_run_makes_it(loss: str) -> None:
    check_recommender(Least, loss)


def test_one_output_for_several_channels_is_refused() -> None:
    class Narrow(Least):
        def predict(self, user: Tensor, items: Tensor) -> Tensor:
            return user.sum(1, keepdim=True) * torch.ones_like(items)

    with pytest.raises(AssertionError, match=re.escape("3 items and 5 channels")):
        check_recommender(Narrow, "cce")
