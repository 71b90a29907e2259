"""Credit of decisions is a plain double loop over what followed them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from dips.credit.adjoint import Effect, effect_of, worth
from dips.credit.queue import queue_credit, windowed
from dips.recommender.base import Evidence, Recommender
from dips.recommender.stacked import StackedRecommenders

Make, MakeCase = Callable[..., Recommender], Callable[..., Any]
TIGHT = {"atol": 1e-10, "rtol": 1e-10}
FORMS = [
    ("dot", "mse"),
    ("dot", "softmax"),
    ("repeat_feature", "softmax"),
    ("dot", "bce"),
    ("mlp", "mse"),
]
OWNERS = [3, 3, 3, 3, 3, 0, 0, 7, 7, 7, -1, -1]


class Decisions(NamedTuple):
    """What `queue_credit` is told."""

    rows: Tensor
    owner: Tensor
    item: Tensor
    rating: Tensor


def _decisions(rows: int, hold: int, seed: int = 0) -> Decisions:
    """Predictions in a shuffled order, some missing."""
    generator = torch.Generator().manual_seed(seed)
    count = len(OWNERS)
    place = torch.randperm(count * hold, generator=generator).view(count, hold) % rows
    place = place.masked_fill(torch.rand(count, hold, generator=generator) < 0.2, -1)
    item = torch.randint(8, (count, 4), generator=generator)
    rating = torch.randint(1, 6, (count, 4), generator=generator).double()
    return Decisions(place, torch.tensor(OWNERS), item, rating)


def _plain(
    model: Recommender, effect: Effect, given: Decisions, length: int, discount: float
) -> Tensor:
    """The sum as it is written, one term at a time; nothing where there is no decision."""
    credit = torch.zeros_like(given.rating)
    for d, owner in enumerate(OWNERS):
        for e in range(d, min(d + length, len(OWNERS))):
            if OWNERS[e] != owner or owner < 0:
                continue
            for row in given.rows[e].tolist():
                if row >= 0:
                    one = type(effect)(*(field[row : row + 1] for field in effect))
                    value = worth(model, one, given.item[d : d + 1], given.rating[d : d + 1])
                    credit[d] += discount ** (e - d) * value[0]
    return credit


@pytest.fixture
def effects(make: Make, case: MakeCase) -> Callable[..., tuple[Recommender, Effect]]:
    def build(kind: str, loss: str, rows: int) -> tuple[Recommender, Effect]:
        model, given = make(kind, loss, inner_steps=3), case(rows=rows)
        return model, effect_of(model, given.evidence, given.item, given.rating)[1]

    return build


@pytest.mark.parametrize("hold", [1, 3])
@pytest.mark.parametrize(("kind", "loss"), FORMS)
def test_credit_is_the_double_loop(effects: Any, kind: str, loss: str, hold: int) -> None:
    model, effect = effects(kind, loss, rows=len(OWNERS) * hold)
    given = _decisions(len(OWNERS) * hold, hold)
    sizes = []
    for length in (1, 2, 3, 4, 5, 100):
        for discount in (1.0, 0.7):
            mine = queue_credit(model, effect, *given, length, discount)
            expected = _plain(model, effect, given, length, discount)
            torch.testing.assert_close(mine, expected, **TIGHT)
            sizes.append(float(mine.abs().sum()))
    assert len(set(sizes)) > 8


@pytest.mark.parametrize("width", [(), (3,), (2, 2)])
def test_windows_of_any_length(width: tuple[int, ...]) -> None:
    """Against a loop; exact where all sums are whole numbers."""
    owner = torch.tensor([5] * 13 + [2] * 9 + [-1] * 2)
    field = torch.randint(-9, 9, (24, *width), generator=torch.Generator().manual_seed(0)).double()
    for length in range(1, 27):
        for discount in (1.0, 0.5):
            expected = torch.zeros_like(field)
            for d in range(22):
                for e in range(d, min(d + length, 13 if d < 13 else 22)):
                    expected[d] += discount ** (e - d) * field[e]
            mine = windowed(field, owner, length, discount)
            torch.testing.assert_close(mine, expected, atol=1e-12, rtol=0)
            if discount == 1.0:
                assert torch.equal(mine, expected)


def test_windows_do_not_cancel() -> None:
    """A large value leaves no trace in the sums that it is not part of."""
    field = torch.tensor([1e12] + [1e-3] * 7, dtype=torch.float32)
    mine = windowed(field, torch.zeros(8, dtype=torch.int64), 3)
    torch.testing.assert_close(mine[1:6], torch.full((5,), 3e-3))


@pytest.mark.parametrize("hold", [1, 3])
@pytest.mark.parametrize(("kind", "loss"), FORMS[:3])
def test_stretches_add_up_to_the_queue(effects: Any, kind: str, loss: str, hold: int) -> None:
    """Each stretch credits its own predictions, to decisions of earlier stretches too."""
    rows = len(OWNERS) * hold
    model, effect = effects(kind, loss, rows=rows)
    given = _decisions(rows, hold)
    time = torch.tensor([0, 1, 2, 3, 4, 0, 1, 0, 1, 2, 0, 0])[:, None]
    for length in (1, 3, 100):
        whole = queue_credit(model, effect, *given, length, 0.9)
        for stretch in range(1, 6):
            parts = [
                given._replace(rows=given.rows.masked_fill(time // stretch != part, -1))
                for part in range(5)
            ]
            total = sum(queue_credit(model, effect, *one, length, 0.9) for one in parts)
            torch.testing.assert_close(total, whole, **TIGHT)


@pytest.mark.parametrize(("kind", "loss"), FORMS)
def test_a_stack_is_each_model_alone(make: Make, case: MakeCase, kind: str, loss: str) -> None:
    models = [make(kind, loss, seed=seed) for seed in range(2)]
    cases = [case(rows=36, seed=seed) for seed in range(2)]
    given = [_decisions(36, 3, seed) for seed in range(2)]

    def ask(model: Recommender, *fields: Tensor) -> Tensor:
        past, (item, rating), rest = Evidence(*fields[:6]), fields[6:8], fields[8:]
        _, effect = effect_of(model, past, item, rating)
        return queue_credit(model, effect, *rest, 3, 0.8)

    flat = [
        [*one.evidence, one.item, one.rating, *some] for one, some in zip(cases, given, strict=True)
    ]
    together = StackedRecommenders.of(models).call(
        ask, *(torch.stack(pair) for pair in zip(*flat, strict=True))
    )
    assert together.shape == (2, 12, 4)
    for run, model in enumerate(models):
        torch.testing.assert_close(together[run], ask(model, *flat[run]), **TIGHT)
        single = StackedRecommenders.of([model]).call(ask, *(field[None] for field in flat[run]))
        torch.testing.assert_close(together[run], single[0], **TIGHT)
