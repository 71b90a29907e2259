"""Credit of decisions equals a plain double loop over later predictions."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from dips.credit.adjoint import Adjoint, entry_gradient, loss_and_adjoint
from dips.credit.queue import queue_credit, stacked_queue_credit, windowed_sum
from dips.recommender.base import Evidence, Recommender
from dips.recommender.stacked import StackedRecommenders
from dips.sketch.records import Candidates

Make, MakeCase = Callable[..., Recommender], Callable[..., Any]
TIGHT = {"atol": 1e-10, "rtol": 1e-10}
FORMS = [
    ("dot", "mse"),
    ("dot", "softmax"),
    ("repeat_feature", "softmax"),
    ("dot", "bce"),
    ("mlp", "mse"),
    ("linearised", "softmax"),
    ("linearised-filter_sketch", "sampled"),
    ("linearised-repeat_feature", "softmax"),
]
OWNERS = [3, 3, 3, 3, 3, 0, 0, 7, 7, 7, -1, -1]


class Decisions(NamedTuple):
    """Arguments of `queue_credit`."""

    prediction_rows: Tensor
    owner: Tensor
    entries: Evidence


def _decisions(rows: int, hold: int, seed: int = 0) -> Decisions:
    """Return decisions with predictions in shuffled order, some missing."""
    generator = torch.Generator().manual_seed(seed)
    count = len(OWNERS)
    place = torch.randperm(count * hold, generator=generator).view(count, hold) % rows
    place = place.masked_fill(torch.rand(count, hold, generator=generator) < 0.2, -1)
    item = torch.randint(8, (count, 4), generator=generator)
    rating = torch.randint(1, 6, (count, 4), generator=generator).double()
    slots = torch.full((count,), 4)
    entries = Evidence.new(item, rating, torch.zeros_like(rating), slots)
    return Decisions(place, torch.tensor(OWNERS), entries)


def _plain(
    model: Recommender, adjoint: Adjoint, given: Decisions, length: int, discount: float
) -> Tensor:
    """Return the sum term by term; 0 where there is no decision."""
    credit = torch.zeros_like(given.entries.rating)
    for d, owner in enumerate(OWNERS):
        for e in range(d, min(d + length, len(OWNERS))):
            if OWNERS[e] != owner or owner < 0:
                continue
            for row in given.prediction_rows[e].tolist():
                if row >= 0:
                    one = type(adjoint)(*(field[row : row + 1] for field in adjoint))
                    entries = Evidence(*(field[d : d + 1] for field in given.entries))
                    value = entry_gradient(model, one, entries)
                    credit[d] += discount ** (e - d) * value[0]
    return credit


@pytest.fixture
def adjoints(make: Make, case: MakeCase) -> Callable[..., tuple[Recommender, Adjoint]]:
    def build(kind: str, loss: str, rows: int) -> tuple[Recommender, Adjoint]:
        model, given = make(kind, loss, inner_steps=3), case(rows=rows)
        return model, loss_and_adjoint(model, given.evidence, given.item, given.rating)[1]

    return build


@pytest.mark.parametrize("hold", [1, 3])
@pytest.mark.parametrize(("kind", "loss"), FORMS)
def test_credit_is_the_double_loop(adjoints: Any, kind: str, loss: str, hold: int) -> None:
    model, adjoint = adjoints(kind, loss, rows=len(OWNERS) * hold)
    given = _decisions(len(OWNERS) * hold, hold)
    sizes = []
    for length in (1, 2, 3, 4, 5, 100):
        for discount in (1.0, 0.7):
            mine = queue_credit(model, adjoint, *given, length, discount)
            expected = _plain(model, adjoint, given, length, discount)
            torch.testing.assert_close(mine, expected, **TIGHT)
            sizes.append(float(mine.abs().sum()))
    assert len(set(sizes)) > 8


def test_repeats_of_a_candidate_count_from_its_older_duplicates_on(
    make: Make, case: MakeCase
) -> None:
    """An empty slot is no duplicate. Ages are those at the predictions."""
    model, given = make("linearised-repeat_feature", "softmax"), case(rows=3)
    _, adjoint = loss_and_adjoint(model, given.evidence, given.item, given.rating)
    item = torch.tensor([[0, 1, 1], [2, 3, 2], [5, 1, 1]])
    position = torch.tensor([[-1, 2, 5], [0, 3, 4], [1, 2, 7]])
    repeats, zeros = torch.tensor([[3, 2, 6], [4, 1, 5], [2, 2, 3]]), torch.zeros_like(item)
    seen, step = torch.tensor([6, 5, 8]), torch.tensor([6, 7, 9])
    fields = (position, item, zeros.double(), zeros, repeats, zeros)
    batch = SimpleNamespace(
        stack=StackedRecommenders.of([model]),
        adjoint=type(adjoint)(*(field[None] for field in adjoint)),
        prediction_places=torch.arange(3)[None, :, None],
        inputs=SimpleNamespace(owner=torch.arange(3)),
        step=step[None],
    )
    mine = stacked_queue_credit(batch, Candidates(*fields, seen, seen), 1)  # type: ignore[arg-type]
    own = torch.tensor([[3, 2, 4], [4, 1, 1], [2, 2, 1]]).double()
    age = (step[:, None] - 1 - position).double()
    apart = Evidence(item, own, torch.zeros_like(own), seen, age, repeats.double())
    slope = model.repeat_slope(adjoint.user, apart._replace(repeats=own))
    whole = entry_gradient(model, adjoint, apart)  # as if no candidate had an older duplicate
    change = slope - model.repeat_slope(adjoint.user, apart)
    score = model.predict(adjoint.user, item) - adjoint.log_norm[:, None]
    expected = whole + change * (score.exp() - (item == adjoint.target[:, None]).double())
    there = position >= 0
    torch.testing.assert_close(mine[there], expected[there], **TIGHT)
    assert not torch.allclose(mine[there], whole[there])


@pytest.mark.parametrize("width", [(), (3,), (2, 2)])
def test_windowed_sums_of_any_length(width: tuple[int, ...]) -> None:
    """They equal a loop; exactly so for whole numbers."""
    owner = torch.tensor([5] * 13 + [2] * 9 + [-1] * 2)
    field = torch.randint(-9, 9, (24, *width), generator=torch.Generator().manual_seed(0)).double()
    for length in range(1, 27):
        for discount in (1.0, 0.5):
            expected = torch.zeros_like(field)
            for d in range(22):
                for e in range(d, min(d + length, 13 if d < 13 else 22)):
                    expected[d] += discount ** (e - d) * field[e]
            mine = windowed_sum(field, owner, length, discount)
            torch.testing.assert_close(mine, expected, atol=1e-12, rtol=0)
            if discount == 1.0:
                assert torch.equal(mine, expected)


def test_windowed_sums_do_not_cancel() -> None:
    """A large value leaves no rounding error in sums without it."""
    field = torch.tensor([1e12] + [1e-3] * 7, dtype=torch.float32)
    mine = windowed_sum(field, torch.zeros(8, dtype=torch.int64), 3)
    torch.testing.assert_close(mine[1:6], torch.full((5,), 3e-3))


@pytest.mark.parametrize("hold", [1, 3])
@pytest.mark.parametrize(("kind", "loss"), FORMS[:3])
def test_update_intervals_add_up_to_the_queue(
    adjoints: Any, kind: str, loss: str, hold: int
) -> None:
    """Each interval gives credit by its own predictions, to earlier decisions too."""
    rows = len(OWNERS) * hold
    model, adjoint = adjoints(kind, loss, rows=rows)
    given = _decisions(rows, hold)
    time = torch.tensor([0, 1, 2, 3, 4, 0, 1, 0, 1, 2, 0, 0])[:, None]
    for length in (1, 3, 100):
        whole = queue_credit(model, adjoint, *given, length, 0.9)
        for interval in range(1, 6):
            parts = [
                given._replace(
                    prediction_rows=given.prediction_rows.masked_fill(time // interval != part, -1)
                )
                for part in range(5)
            ]
            total = sum(queue_credit(model, adjoint, *one, length, 0.9) for one in parts)
            torch.testing.assert_close(total, whole, **TIGHT)


@pytest.mark.parametrize(("kind", "loss"), FORMS)
def test_stacked_models_equal_single_models(
    make: Make, case: MakeCase, kind: str, loss: str
) -> None:
    models = [make(kind, loss, seed=seed) for seed in range(2)]
    cases = [case(rows=36, seed=seed) for seed in range(2)]
    given = [_decisions(36, 3, seed) for seed in range(2)]

    def compute(model: Recommender, one: Any, decisions: Decisions) -> Tensor:
        _, adjoint = loss_and_adjoint(model, one.evidence, one.item, one.rating)
        return queue_credit(model, adjoint, *decisions, 3, 0.8)

    pairs = [*zip(cases, given, strict=True)]
    stacked = tree_map(lambda *leaves: torch.stack(leaves), *pairs)
    together = StackedRecommenders.of(models).call(compute, *stacked)
    assert together.shape == (2, 12, 4)
    for run, model in enumerate(models):
        torch.testing.assert_close(together[run], compute(model, *pairs[run]), **TIGHT)
        one_run = tree_map(lambda leaf: leaf[None], pairs[run])
        single = StackedRecommenders.of([model]).call(compute, *one_run)
        torch.testing.assert_close(together[run], single[0], **TIGHT)
