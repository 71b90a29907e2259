"""Survival credit is the derivative of the recursion of entry weights with constant scores."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dips.credit import survival
from dips.credit.survival import survival_credit

SIZE = 3
FIELDS = ("value", "score", "candidate", "tracked", "position")
TIGHT = {"atol": 1e-10, "rtol": 1e-10}


def _random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class History:
    """One user's decisions, with `periods` new interactions before each; all are tracked."""

    def __init__(self, periods: list[int], seed: int = 0) -> None:
        self.periods = periods
        turns, width = len(periods), SIZE + sum(periods)
        self.value = _random(turns, width, seed=seed)
        self.score = _random(turns, width, seed=seed + 1)
        self.seen = torch.tensor(periods).cumsum(0) + SIZE
        self.position = torch.arange(width).expand(turns, -1)
        self.tracked = self.position < self.seen[:, None]
        kept = torch.arange(width) < SIZE
        rows = []
        for turn, period in enumerate(periods):
            new = (self.position[turn] >= self.seen[turn] - period) & self.tracked[turn]
            rows.append(kept | new)
            best = self.score[turn].masked_fill(~rows[-1], -torch.inf).topk(SIZE).indices
            kept = torch.zeros(width, dtype=torch.bool).index_fill(0, best, True)
        self.candidate = torch.stack(rows)
        self.value = torch.where(self.tracked, self.value, 0.0)

    def relaxed(self, turn: int, weight: Tensor) -> Tensor:
        """Return relaxed weights after a refresh; nu by Newton steps."""
        score = self.score[turn]
        if self.periods[turn] == 1:
            powers = weight * torch.exp(-score)
            return weight - powers / powers.sum()
        nu = torch.zeros(1, dtype=torch.float64)
        for _ in range(60):
            probability = torch.sigmoid(score + nu)
            nu = (
                nu
                - ((weight * probability).sum() - SIZE)
                / (weight * probability * (1 - probability)).sum()
            )
        return weight * torch.sigmoid(score + nu)

    def after(self, turn: int, weight: Tensor, length: int) -> Tensor:
        """Return the summed value of weights over `length` decisions from `turn` on."""
        total = (self.value[turn] * weight).sum()
        for later in range(turn + 1, min(turn + length, len(self.periods))):
            new = self.candidate[later] & (self.position[later] >= self.seen[later - 1])
            weight = torch.where(new, 1.0, weight)
            soft = self.relaxed(later, weight)
            hard = (
                self.candidate[later + 1] & (self.position[0] < self.seen[later])
                if (later + 1 < len(self.periods))
                else torch.zeros_like(new)
            )
            base = self.relaxed(later, self.candidate[later].double()).detach()
            weight = soft + (hard.double() - base)
            total = total + (self.value[later] * weight).sum()
        return total

    def kept(self, turn: int) -> Tensor:
        """Return hard weights after decision `turn`."""
        if turn + 1 == len(self.periods):
            return torch.zeros_like(self.value[0])
        return (self.candidate[turn + 1] & (self.position[0] < self.seen[turn])).double()

    def credit(self, length: int, owner: Tensor | None = None, **rest: bool) -> Tensor:
        owners = torch.zeros(len(self.periods), dtype=torch.int64) if owner is None else owner
        return survival_credit(
            self.value, self.score, self.candidate.double(), self.tracked, self.position,
            owners, SIZE, length, **rest,
        )  # fmt: skip


def _centred(values: Tensor, where: Tensor) -> Tensor:
    """Return values minus their mean."""
    return (values - values[where].mean())[where]


@pytest.mark.parametrize("length", [1, 2, 3, 100])
@pytest.mark.parametrize("periods", [[1] * 7, [3, 2, 4, 2], [1, 3, 1, 1, 2]])
def test_credit_is_the_derivative_of_the_recursion(periods: list[int], length: int) -> None:
    """By autograd and by finite differences; for batches up to a constant per decision."""
    history = History(periods)
    mine = history.credit(length)
    assert float((mine - history.value).abs().max()) > 0.1 or length == 1
    for turn in range(len(periods)):
        there = history.tracked[turn]
        weight = history.kept(turn).requires_grad_()
        (derivative,) = torch.autograd.grad(history.after(turn, weight, length), weight)
        torch.testing.assert_close(
            _centred(mine[turn], there), _centred(derivative, there), **TIGHT
        )
        if set(periods) == {1}:
            torch.testing.assert_close(mine[turn][there], derivative[there], **TIGHT)
        for place in there.nonzero()[:, 0].tolist():
            step = torch.zeros_like(weight)
            step[place] = 1e-5
            ahead = history.after(turn, history.kept(turn) + step, length)
            behind = history.after(turn, history.kept(turn) - step, length)
            assert float(ahead - behind) / 2e-5 == pytest.approx(float(derivative[place]), abs=1e-6)


@pytest.mark.parametrize("periods", [[1] * 6, [3, 2, 4, 2]])
def test_a_constant_per_decision_stays_constant(periods: list[int]) -> None:
    """Only differences between entries count, also if dropped candidates are not tracked."""
    history = History(periods)
    history.tracked = history.candidate
    before = history.credit(100)
    history.value = history.value + _random(len(periods), 1, seed=9)
    shift = history.credit(100) - before
    for turn, there in enumerate(history.tracked):
        assert float(shift[turn][there].std()) < 1e-12
        assert bool((shift[turn][~there] == 0).all())


@pytest.mark.parametrize("periods", [[1] * 6, [2, 2, 2]])
def test_the_order_of_slots_does_not_matter(periods: list[int]) -> None:
    """Positions identify entries; empty slots may hold anything."""
    history, order = History(periods), torch.Generator().manual_seed(3)
    expected = history.credit(100)
    history.score = torch.where(history.tracked, history.score, torch.nan)
    history.value = torch.where(history.tracked, history.value, torch.nan)
    mixed = torch.stack([torch.randperm(9, generator=order) for _ in periods])
    for name in FIELDS:
        setattr(history, name, getattr(history, name).gather(1, mixed))
    torch.testing.assert_close(history.credit(100), expected.gather(1, mixed), **TIGHT)


def test_users_and_padding_do_not_mix() -> None:
    histories = [History([1] * 4, seed=seed) for seed in (0, 5)]
    single = [history.credit(100) for history in histories]
    both = histories[0]
    for name in FIELDS:
        pair = [getattr(history, name) for history in histories]
        empty = torch.zeros_like(pair[0][:2])
        setattr(both, name, torch.cat([*pair, empty]))
    both.periods = [1] * 10
    owner = torch.tensor([4] * 4 + [2] * 4 + [-1] * 2)
    mine = both.credit(100, owner)
    torch.testing.assert_close(mine[:8], torch.cat(single), **TIGHT)
    assert bool(mine.isfinite().all())


def test_bounded_credit_of_dropped_candidates() -> None:
    """Without the bound, low scores of dropped candidates give probabilities above 1."""
    history = History([1] * 7)
    history.score = torch.where(history.candidate, history.score, history.score - 6)
    unbounded, bounded = history.credit(100), history.credit(100, bounded=True)
    assert float(unbounded.abs().max()) > 1e6
    assert float(bounded.abs().max()) < 30
    history.tracked = history.candidate
    torch.testing.assert_close(history.credit(100), history.credit(100, bounded=True))


@pytest.mark.parametrize("periods", [[1] * 6, [3, 2, 4, 2]])
def test_stacks_and_single_precision(periods: list[int]) -> None:
    histories = [History(periods, seed=seed) for seed in (0, 5)]
    owner = torch.zeros(2, len(periods), dtype=torch.int64)
    for dtype, loose in ((torch.float64, 1e-10), (torch.float32, 1e-3)):
        fields = [torch.stack([getattr(history, name) for history in histories]) for name in FIELDS]
        fields[:3] = [field.to(dtype) for field in fields[:3]]
        call = torch.func.vmap(lambda *one: survival_credit(*one, SIZE, 100))
        together = call(*fields, owner)
        assert together.dtype == dtype
        for run, history in enumerate(histories):
            gap = (together[run].double() - history.credit(100)).abs().max()
            assert float(gap) < loose


@pytest.mark.parametrize("periods", [[1] * 6, [3, 2, 4, 2]])
def test_extreme_scores_give_finite_credit(periods: list[int]) -> None:
    """In float32 with scores thousands apart credit is finite; constants stay constant."""
    history = History(periods)
    history.tracked = history.candidate
    history.value, history.score = history.value.float(), history.score.float() * 1e4
    before = history.credit(100)
    assert float(before.abs().max()) < 30
    history.value = history.value + 1
    shift = history.credit(100) - before
    for row, there in zip(shift, history.tracked, strict=True):
        assert float(row[there].std()) < 1e-5


@pytest.mark.parametrize("length", [1, 2, 3, 6, 7, 50])
@pytest.mark.parametrize("periods", [[1] * 9, [3, 2, 4, 2, 1]])
def test_doubling_equals_the_recursion(
    periods: list[int], length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(periods, seed=3)
    owner = torch.tensor([0] * 3 + [1] * (len(periods) - 3))
    doubling = history.credit(length, owner)
    monkeypatch.setattr(survival, "MAX_MATRIX_WIDTH", 0)
    torch.testing.assert_close(doubling, history.credit(length, owner), **TIGHT)


def test_the_online_form_equals_the_general_form() -> None:
    history = History([1] * 6, seed=4)
    torch.testing.assert_close(history.credit(5, online=True), history.credit(5), **TIGHT)
