"""Replay (Eq. 9) against finite differences, and the other forms of credit against replay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from dips.credit.adjoint import entry_gradient, loss_and_adjoint
from dips.credit.queue import Timeline, queue_credit
from dips.credit.replay import Replayed, ScoreWeighted, replay
from dips.credit.survival import survival_credit
from dips.numerics.relaxation import drop_one, keep_k
from dips.recommender.base import Evidence, Recommender
from dips.recommender.stacked import StackedRecommenders
from dips.sketch.records import Candidates
from dips.sketch.selection import Sampled
from dips.stream.schedule import Schedule

Make = Callable[..., Recommender]
SIZE, LENGTHS, HIDDEN = 2, (9, 7, 4, 1), 4
TIGHT = {"atol": 1e-10, "rtol": 1e-10}
SCHEDULES = [Schedule((1,)), Schedule((3,)), Schedule((2, 1))]


def _random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _past(seed: int = 0, *, distinct: bool = False) -> Candidates:
    generator = torch.Generator().manual_seed(seed)
    length = torch.tensor(LENGTHS)
    shape = (len(LENGTHS), max(LENGTHS))
    place = torch.arange(shape[1]).expand(shape)
    item = torch.randint(8, shape, generator=generator)
    if distinct:
        item = torch.rand(shape, generator=generator).argsort(1)
    rating = torch.randint(1, 6, shape, generator=generator).double()
    position = torch.where(place < length[:, None], place, -1)
    nothing = torch.zeros_like(item)
    return Candidates(position, item, rating, nothing, nothing, nothing, length, length * 77)


def _network(phi: Tensor) -> ScoreWeighted:
    """Return scores of a small network that reads all weights."""
    first, pool, last, ages = phi.view(4, HIDDEN)

    def weigh(candidates: Candidates, weight: Tensor) -> Tensor:
        seen = weight * (candidates.rating - 2.5) + 0.2 * candidates.item
        other = weight * candidates.repeats + seen + 0.05 * candidates.age
        other = other.sum(1, keepdim=True) / 4
        hidden = seen[..., None] * first + other[..., None] * pool
        return torch.tanh(hidden + 0.1 * candidates.age[..., None] * ages) @ last

    return weigh


def _phi(seed: int = 1) -> Tensor:
    return _random(4 * HIDDEN, seed=seed) / 2


def _repeats(
    past: Candidates, user: int, sketch: list[int], first: int, last: int
) -> dict[int, int]:
    """Return repeat counts of new interactions; those of the sketch are looked up."""
    item = past.item[user].tolist()
    known = {p: int(past.repeats[user, p]) for p in sketch}
    return {
        new: max((known[p] for p in sketch if item[p] == item[new]), default=0)
        + sum(item[p] == item[new] for p in range(first, new + 1))
        for new in range(first, last)
    }


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_losses_are_those_of_hard_sketches(make: Make, schedule: Schedule, seed: int) -> None:
    """One user at a time, with lists: the lowest scores are dropped and never return."""
    model, past, weigh = make("dot", "mse"), _past(seed), _network(_phi(seed))
    found = replay(weigh, model, past, SIZE, schedule)
    refreshes = dict(schedule.refreshes(SIZE, max(LENGTHS) - 1))
    own = past._replace(repeats=past.repeats.clone())
    for user, length in enumerate(LENGTHS):
        sketch: list[int] = []
        turn = 0
        for new, count in _repeats(own, user, [], 0, SIZE).items():
            own.repeats[user, new] = count
        for t in range(length):
            if t in refreshes:
                for new, count in _repeats(own, user, sketch, t - refreshes[t], t).items():
                    own.repeats[user, new] = count
                pool = [*sketch, *range(t - refreshes[t], t)]
                weight = torch.zeros(1, t).double()
                weight[0, pool] = 1.0
                fields = [field[user : user + 1, :t] for field in own.entries]
                one = Candidates._make([*fields, torch.tensor([t]), own.key[user : user + 1]])
                scores = weigh(one, weight)[0].tolist()
                sketch = sorted(sorted(pool, key=lambda p, s=scores: s[p])[-SIZE:])
                assert found.choices[turn].kept[user].nonzero()[:, 0].tolist() == sketch
                turn += 1
            held = past.item[user : user + 1, sketch], past.rating[user : user + 1, sketch]
            weight = torch.ones(1, len(sketch)).double()
            state = model.read(Evidence.new(*held, weight, torch.tensor([len(sketch)])))
            target = past.item[user, t].view(1, 1), past.rating[user, t].view(1, 1)
            loss = model.losses(state, *target)[0, 0]
            torch.testing.assert_close(found.losses[user, t], loss, **TIGHT)
            if t < SIZE:
                sketch = [*sketch, t]
        assert bool((found.losses[user, length:] == 0).all())


@pytest.mark.parametrize("identity", [False, True])
@pytest.mark.parametrize(
    ("kind", "loss"),
    [("dot", "mse"), ("recency_decay", "softmax"), ("mlp", "bce"), ("filter_sketch", "softmax"),
     ("gru", "softmax"), ("sasrec", "softmax"), ("gru-repeat_feature", "softmax")],
)  # fmt: skip
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_gradients_are_finite_differences_of_the_offset_recursion(
    make: Make, schedule: Schedule, kind: str, loss: str, identity: bool
) -> None:
    """They are with all paths (Eq. 9), and are not with the identity (Eq. 10)."""
    model, past = make(kind, loss), _past(distinct=kind in ("filter_sketch", "gru-repeat_feature"))
    phi = _phi().requires_grad_()
    found = replay(_network(phi), model, past, SIZE, schedule, identity=identity)
    (derivative,) = torch.autograd.grad(found.losses.sum(), phi)

    def total(point: Tensor) -> Tensor:
        again = replay(_network(point), model, past, SIZE, schedule, choices=found.choices)
        assert len(again.choices) == len(found.choices)
        return again.losses.sum()

    torch.testing.assert_close(total(phi.detach()), found.losses.sum().detach(), **TIGHT)
    gaps = []
    for place in range(len(phi)):
        step = torch.zeros_like(derivative).index_fill(0, torch.tensor([place]), 1e-5)
        difference = (total(phi.detach() + step) - total(phi.detach() - step)) / 2e-5
        gaps.append(float((difference - derivative[place]).abs()))
    assert float(derivative.abs().max()) > 1e-3
    assert (max(gaps) < 1e-6) != identity


def test_gradients_reach_the_recommender(make: Make) -> None:
    """Losses of a replay are differentiable in the recommender's parameters too."""
    model, past = make("dot", "mse").requires_grad_(), _past()
    found = replay(_network(_phi()), model, past, SIZE, SCHEDULES[0])
    for derivative in torch.autograd.grad(found.losses.sum(), list(model.parameters())):
        assert float(derivative.abs().max()) > 1e-3


def _predictions(
    past: Candidates, found: Replayed, schedule: Schedule, repeats: list[Tensor]
) -> tuple[Evidence, list[Tensor], Tensor, Tensor]:
    """Return sketches, targets, rows [users * turns, hold] and steps of all predictions.

    `repeats` holds the repeat counts [users, longest] at each refresh.
    """
    refreshes = list(schedule.refreshes(SIZE, max(LENGTHS) - 1))
    ends = [*(seen for seen, _ in refreshes[1:]), max(LENGTHS)]
    users, longest = past.item.shape
    rows = torch.full((users, len(refreshes), schedule.longest), -1)
    evidence, targets, steps = [], [], []
    for turn, ((seen, _), end) in enumerate(zip(refreshes, ends, strict=True)):
        kept = pad(found.choices[turn].kept.double(), (0, longest - seen))
        for t in range(seen, end):
            row = len(evidence) * users + torch.arange(users)
            rows[:, turn, t - seen] = torch.where(past.present[:, t], row, -1)
            age = (t - 1 - torch.arange(longest)).clamp_min(0).double().expand(users, -1)
            slots = torch.full((users,), SIZE)
            evidence.append((past.item, past.rating, kept, slots, age, repeats[turn]))
            steps.append(torch.full((users,), t))
            targets.append((past.item[:, t], past.rating[:, t]))
    merged = Evidence(*map(torch.cat, zip(*evidence, strict=True)))
    target = [*map(torch.cat, zip(*targets, strict=True))]
    return merged, target, rows.flatten(0, 1), torch.cat(steps)


@pytest.mark.parametrize("survival", [False, True], ids=["queue", "survival"])
@pytest.mark.parametrize(
    ("kind", "loss"),
    [("dot", "mse"), ("dot", "softmax"), ("dot", "bce"), ("repeat_feature", "softmax"),
     ("recency_decay", "softmax"), ("filter_sketch", "softmax"), ("linearised", "sampled"),
     ("linearised-recency_decay", "softmax"), ("linearised-filter_sketch", "softmax"),
     ("linearised-repeat_feature", "softmax"), ("gru", "softmax"), ("sasrec", "softmax"),
     ("gru-cosine", "sampled"), ("gru-repeat_feature", "softmax"),
     ("sasrec-filter_sketch", "softmax")],
)  # fmt: skip
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_queue_and_survival_are_replays_with_fewer_paths(
    make: Make, schedule: Schedule, kind: str, loss: str, survival: bool
) -> None:
    """Queue: the Jacobian is the identity. Survival: scores do not depend on weights."""
    once = kind.endswith("filter_sketch") or (
        kind.endswith("repeat_feature") and kind != "repeat_feature"
    )
    model, past, longest = make(kind, loss), _past(distinct=once), max(LENGTHS)
    phi = _phi().requires_grad_()
    shown = []

    def weigh(candidates: Candidates, weight: Tensor) -> Tensor:
        assert torch.equal(candidates.position, past.position[:, : weight.shape[1]])
        shown.append((candidates, weight.detach()))
        return _network(phi)(candidates, weight.detach())

    found = replay(weigh, model, past, SIZE, schedule, identity=not survival)
    (expected,) = torch.autograd.grad(found.losses.sum(), phi)

    columns: list[list[Tensor]] = [[], [], [], []]
    for candidates, weight in shown:
        score = _network(phi)(candidates, weight)
        online = int(weight[0].sum()) == SIZE + 1
        soft = drop_one(score, weight) if online else keep_k(score, weight, SIZE)
        for column, field in zip(
            columns, (soft, score, weight, torch.ones_like(weight)), strict=True
        ):
            column.append(pad(field, (0, longest - field.shape[1])))
    soft, score, weight, there = (torch.stack(column, 1).flatten(0, 1) for column in columns)
    turns = len(shown)
    owner = torch.arange(len(LENGTHS)).repeat_interleave(turns)
    repeats = [
        pad(each.repeats, (0, longest - each.repeats.shape[1])).double() for each, _ in shown
    ]
    evidence, target, rows, step = _predictions(past, found, schedule, repeats)
    item, rating = (field.repeat_interleave(turns, 0) for field in (past.item, past.rating))
    entries = Evidence.new(item, rating, torch.zeros_like(rating), torch.full((len(item),), SIZE))
    entries = entries._replace(repeats=torch.stack(repeats, 1).flatten(0, 1))
    timeline = Timeline(past.position.repeat_interleave(turns, 0), step)
    _, adjoint = loss_and_adjoint(model, evidence, *target)
    length = 1 if survival else 100
    credit = queue_credit(model, adjoint, rows, owner, entries, length, timeline=timeline)
    if survival:
        position = torch.arange(longest).expand(len(owner), -1)
        credit = survival_credit(
            credit, score.detach(), weight, there > 0, position, owner, SIZE, 100
        )
    (mine,) = torch.autograd.grad((credit * soft).sum(), phi)
    torch.testing.assert_close(mine, expected, **TIGHT)
    assert float(mine.abs().max()) > 1e-3


def test_sampled_choices_and_short_histories(make: Make) -> None:
    model, past = make("dot", "mse"), _past()
    drawn = replay(_network(_phi()), model, past, SIZE, SCHEDULES[0], selector=Sampled())
    greedy = replay(_network(_phi()), model, past, SIZE, SCHEDULES[0])
    assert all(bool((choice.kept.sum(1) <= SIZE).all()) for choice in drawn.choices)
    assert not torch.equal(drawn.losses, greedy.losses)
    torch.testing.assert_close(drawn.losses[2:, :3], greedy.losses[2:, :3])
    brief = Candidates(*(f[:, :3] if f.dim() == 2 else f for f in past))
    unlimited = replay(_network(_phi()), model, brief, 5, SCHEDULES[0])
    assert unlimited.losses.shape == (len(LENGTHS), 3)
    assert unlimited.choices == []
    torch.testing.assert_close(unlimited.losses, greedy.losses[:, :3])


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_stacked_models_equal_single_models(make: Make, schedule: Schedule) -> None:
    models = [make("dot", "mse", seed=seed) for seed in range(2)]
    pasts = [_past(seed) for seed in range(2)]
    phis = torch.stack([_phi(seed) for seed in (1, 2)]).requires_grad_()

    def ask(model: Recommender, phi: Tensor, *past: Tensor) -> Tensor:
        return replay(_network(phi), model, Candidates(*past), SIZE, schedule).losses

    fields = [torch.stack(pair) for pair in zip(*pasts, strict=True)]
    together = StackedRecommenders.of(models).call(ask, phis, *fields)
    (derivatives,) = torch.autograd.grad(together.sum(), phis)
    for run, model in enumerate(models):
        phi = phis[run].detach().requires_grad_()
        single = ask(model, phi, *pasts[run])
        torch.testing.assert_close(together[run], single, **TIGHT)
        (derivative,) = torch.autograd.grad(single.sum(), phi)
        torch.testing.assert_close(derivatives[run], derivative, **TIGHT)


def test_entry_gradients_are_derivatives_of_a_replayed_prediction(make: Make) -> None:
    """They include the weights of dropped entries."""
    model, past = make("dot", "mse"), _past()
    weight = torch.tensor([[1.0, 0.0, 1.0, 0.0]] * len(LENGTHS)).double().requires_grad_()
    evidence = Evidence.new(past.item[:, :4], past.rating[:, :4], weight, torch.full((4,), SIZE))
    loss = model.losses(model.read(evidence), past.item[:, 4:5], past.rating[:, 4:5])
    (derivative,) = torch.autograd.grad(loss.sum(), weight)
    detached = evidence._replace(weight=weight.detach())
    _, adjoint = loss_and_adjoint(model, detached, past.item[:, 4], past.rating[:, 4])
    torch.testing.assert_close(entry_gradient(model, adjoint, detached), derivative, **TIGHT)


def test_a_replay_filters_what_was_met_before_each_prediction(make: Make) -> None:
    """Losses equal a loop with a mask; sketch and later items do not matter."""
    model, past = make("linearised", "softmax"), _past()
    schedule = SCHEDULES[-1]
    plain = replay(_network(_phi()), model, past, SIZE, schedule)
    model.masks_seen = True
    found = replay(_network(_phi()), model, past, SIZE, schedule, choices=plain.choices)
    refreshes = [seen for seen, _ in schedule.refreshes(SIZE, max(LENGTHS) - 1)]
    for user, length in enumerate(LENGTHS):
        for t in range(length):
            turn = sum(seen <= t for seen in refreshes) - 1
            kept = torch.arange(t)[: SIZE if turn < 0 else None]
            if turn >= 0:
                kept = plain.choices[turn].kept[user].nonzero()[:, 0]
            item, rating = past.item[None, user, kept], past.rating[None, user, kept]
            slots = torch.tensor([min(t, SIZE)])
            sketch = Evidence.new(item, rating, torch.ones_like(rating), slots)
            scores = model.predict_all(model.read(sketch))[0]
            own = int(past.item[user, t])
            left = [one for one in range(8) if one == own or one not in past.item[user, :t]]
            wanted = scores[left].logsumexp(0) - scores[own]
            torch.testing.assert_close(found.losses[user, t], wanted, **TIGHT)
