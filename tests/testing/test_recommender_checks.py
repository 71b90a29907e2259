"""Each check of a recommender against a recommender made to fail it; the fakes themselves."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from dips.recommender.base import Recommender
from dips.recommender.losses import SquaredError
from dips.testing import RECOMMENDER_CHECKS, FakeSignals, check_recommender, random_candidates
from dips.testing import recommenders as checks
from dips.testing.fakes import item_vectors


class Broken(Recommender):
    """A linear recommender, one of whose methods is replaced."""

    def __init__(self, rate: float = 0.05, **methods):
        super().__init__(items=8, user_dim=4, loss=SquaredError(), inner_rate=rate)
        self.register_buffer("table", item_vectors(torch.arange(8), 4).float())
        self.methods = methods
        self.calls = 0

    def predict(self, user: Tensor, items: Tensor) -> Tensor:
        self.calls += 1
        plain = (self.table[items] * user[:, None, :]).sum(2)
        return self.methods["predict"](self, plain, user) if "predict" in self.methods else plain

    def read(self, evidence, *settle):
        plain = super().read(evidence, *settle)
        return self.methods["read"](self, plain, evidence) if "read" in self.methods else plain

    def gradients(self, *arguments):
        plain = super().gradients(*arguments)
        return plain * self.methods.get("slope", 1.0)



BROKEN = {
    "one_output_per_item-shape": (Broken(predict=lambda m, p, u: p.sum(1)), "returned the shape"),
    "one_output_per_item-inf": (Broken(predict=lambda m, p, u: p / 0), "is not finite"),
    "blind_to_other_rows-rows": (Broken(predict=lambda m, p, u: p + u.sum()), "than in a batch"),
    "blind_to_other_rows-items": (
        Broken(predict=lambda m, p, u: p.cumsum(1)),
        "depends on the order of the items",
    ),
    "differentiable_in_the_user": (
        Broken(predict=lambda m, p, u: p.detach() * 0),
        "reading cannot move it",
    ),
    "reads_what_is_there-prior": (Broken(read=lambda m, p, e: p + 1), "on an empty sketch"),
    "reads_what_is_there-weights": (
        Broken(read=lambda m, p, e: p + (e.weight.sum() > 0) * e.rating.sum(1, keepdim=True)),
        "entries of weight 0",
    ),
    "reads_what_is_there-order": (
        Broken(read=lambda m, p, e: p + (e.rating * e.weight)[:, :1]),
        "order of the sketch's entries",
    ),
    "reading_lowers_the_loss": (Broken(rate=-0.05), "does not lower the loss"),
    "closed_forms_agree": (Broken(slope=1.01), "gradients differs from the generic form by"),
    "second_order_gradients": (
        Broken(read=lambda m, p, e: p.detach() + m.user_prior - m.user_prior.detach()),
        "finite differences say",
    ),
    "stacks": (
        Broken(predict=lambda m, p, u: p + m.calls),
        "predicts differently in a stack of runs",
    ),
    "decides_alone_as_in_company": (
        Broken(predict=lambda m, p, u: p + u.shape[0]),
        "between a batch and a user alone",
    ),
    "loads_what_it_saves": (Broken(predict=lambda m, p, u: p + m.calls), "saved and loaded"),
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
    check_recommender(Broken)
    with pytest.raises(AssertionError, match="is not a dips Recommender"):
        check_recommender(dict)  # type: ignore[arg-type]


def test_fake_readings_are_what_they_say() -> None:
    """Slopes and curvature of the fake are derivatives of its losses."""
    _, candidates = random_candidates(users=4, size=3, period=2, seed=3)
    signals = FakeSignals(candidates)
    reading = signals.read(candidates.present.double())
    user = reading._user.clone().requires_grad_()
    vectors = signals.embedding()
    losses = ((vectors * user[:, None]).sum(2) - candidates.rating.double()) ** 2
    assert torch.equal(losses.detach(), reading.losses())
    for slot in range(5):
        (slope,) = torch.autograd.grad(losses[:, slot].sum(), user, retain_graph=True)
        torch.testing.assert_close(slope, reading.gradients()[:, slot])
    total = (losses * candidates.present).sum()
    (slope,) = torch.autograd.grad(total, user, create_graph=True)
    vector = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (product,) = torch.autograd.grad((slope * vector).sum(), user)
    torch.testing.assert_close(product, reading.curve(vector))


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
