"""Survival credit is the derivative of the recursion of weights, scores held."""

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


class Life:
    """One user's decisions: `periods` new interactions before each, all positions tracked."""

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
        """The soft weights after a refresh, written plainly; nu by Newton's iteration."""
        score = self.score[turn]
        if self.periods[turn] == 1:
            powers = weight * torch.exp(-score)
            return weight - powers / powers.sum()
        nu = torch.zeros(1, dtype=torch.float64)
        for _ in range(60):
            chance = torch.sigmoid(score + nu)
            nu = nu - ((weight * chance).sum() - SIZE) / (weight * chance * (1 - chance)).sum()
        return weight * torch.sigmoid(score + nu)

    def after(self, turn: int, weight: Tensor, length: int) -> Tensor:
        """What `weight` after decision `turn` is worth over `length` decisions."""
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
        """Hard weights after decision `turn`."""
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
    """Without what is common to all."""
    return (values - values[where].mean())[where]


@pytest.mark.parametrize("length", [1, 2, 3, 100])
@pytest.mark.parametrize("periods", [[1] * 7, [3, 2, 4, 2], [1, 3, 1, 1, 2]])
def test_credit_is_the_derivative_of_the_recursion(periods: list[int], length: int) -> None:
    """By autograd and by finite differences; in batches up to a constant common to all."""
    life = Life(periods)
    mine = life.credit(length)
    assert float((mine - life.value).abs().max()) > 0.1 or length == 1
    for turn in range(len(periods)):
        there = life.tracked[turn]
        weight = life.kept(turn).requires_grad_()
        (slope,) = torch.autograd.grad(life.after(turn, weight, length), weight)
        torch.testing.assert_close(_centred(mine[turn], there), _centred(slope, there), **TIGHT)
        if set(periods) == {1}:
            torch.testing.assert_close(mine[turn][there], slope[there], **TIGHT)
        for place in there.nonzero()[:, 0].tolist():
            step = torch.zeros_like(weight)
            step[place] = 1e-5
            ahead = life.after(turn, life.kept(turn) + step, length)
            behind = life.after(turn, life.kept(turn) - step, length)
            assert float(ahead - behind) / 2e-5 == pytest.approx(float(slope[place]), abs=1e-6)


@pytest.mark.parametrize("periods", [[1] * 6, [3, 2, 4, 2]])
def test_what_is_common_to_all_stays_common(periods: list[int]) -> None:
    """Also when dropped_candidates are forgotten: only differences between entries count."""
    life = Life(periods)
    life.tracked = life.candidate
    before = life.credit(100)
    life.value = life.value + _random(len(periods), 1, seed=9)
    shift = life.credit(100) - before
    for turn, there in enumerate(life.tracked):
        assert float(shift[turn][there].std()) < 1e-12
        assert bool((shift[turn][~there] == 0).all())


@pytest.mark.parametrize("periods", [[1] * 6, [2, 2, 2]])
def test_slots_may_be_in_any_order(periods: list[int]) -> None:
    """Entries are recognised by position; empty slots may hold anything."""
    life, order = Life(periods), torch.Generator().manual_seed(3)
    expected = life.credit(100)
    life.score = torch.where(life.tracked, life.score, torch.nan)
    life.value = torch.where(life.tracked, life.value, torch.nan)
    mixed = torch.stack([torch.randperm(9, generator=order) for _ in periods])
    for name in FIELDS:
        setattr(life, name, getattr(life, name).gather(1, mixed))
    torch.testing.assert_close(life.credit(100), expected.gather(1, mixed), **TIGHT)


def test_nothing_flows_between_owners_or_from_padding() -> None:
    lives = [Life([1] * 4, seed=seed) for seed in (0, 5)]
    alone = [life.credit(100) for life in lives]
    both = lives[0]
    for name in FIELDS:
        pair = [getattr(life, name) for life in lives]
        empty = torch.zeros_like(pair[0][:2])
        setattr(both, name, torch.cat([*pair, empty]))
    both.periods = [1] * 10
    owner = torch.tensor([4] * 4 + [2] * 4 + [-1] * 2)
    mine = both.credit(100, owner)
    torch.testing.assert_close(mine[:8], torch.cat(alone), **TIGHT)
    assert bool(mine.isfinite().all())


def test_bounded_ghosts_stay_with_a_chance() -> None:
    """Ghosts with low scores: more than all of them goes, unless they are asked as candidates."""
    life = Life([1] * 7)
    life.score = torch.where(life.candidate, life.score, life.score - 6)
    wild, tame = life.credit(100), life.credit(100, bounded=True)
    assert float(wild.abs().max()) > 1e6
    assert float(tame.abs().max()) < 30
    life.tracked = life.candidate
    torch.testing.assert_close(life.credit(100), life.credit(100, bounded=True))


@pytest.mark.parametrize("periods", [[1] * 6, [3, 2, 4, 2]])
def test_stacks_and_single_precision(periods: list[int]) -> None:
    lives = [Life(periods, seed=seed) for seed in (0, 5)]
    owner = torch.zeros(2, len(periods), dtype=torch.int64)
    for dtype, loose in ((torch.float64, 1e-10), (torch.float32, 1e-3)):
        fields = [torch.stack([getattr(life, name) for life in lives]) for name in FIELDS]
        fields[:3] = [field.to(dtype) for field in fields[:3]]
        call = torch.func.vmap(lambda *one: survival_credit(*one, SIZE, 100))
        together = call(*fields, owner)
        assert together.dtype == dtype
        for run, life in enumerate(lives):
            gap = (together[run].double() - life.credit(100)).abs().max()
            assert float(gap) < loose


@pytest.mark.parametrize("periods", [[1] * 6, [3, 2, 4, 2]])
def test_extreme_scores_are_harmless(periods: list[int]) -> None:
    """Finite, and what is common stays common, in float32 with scores thousands apart."""
    life = Life(periods)
    life.tracked = life.candidate
    life.value, life.score = life.value.float(), life.score.float() * 1e4
    before = life.credit(100)
    assert float(before.abs().max()) < 30
    life.value = life.value + 1
    shift = life.credit(100) - before
    for row, there in zip(shift, life.tracked, strict=True):
        assert float(row[there].std()) < 1e-5


@pytest.mark.parametrize("length", [1, 2, 3, 6, 7, 50])
@pytest.mark.parametrize("periods", [[1] * 9, [3, 2, 4, 2, 1]])
def test_doubling_equals_sweeping(
    periods: list[int], length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(periods, seed=3)
    owner = torch.tensor([0] * 3 + [1] * (len(periods) - 3))
    doubling = life.credit(length, owner)
    monkeypatch.setattr(survival, "WIDE", 0)
    torch.testing.assert_close(doubling, life.credit(length, owner), **TIGHT)


def test_one_at_a_time_needs_no_projection() -> None:
    life = Life([1] * 6, seed=4)
    torch.testing.assert_close(life.credit(5, online=True), life.credit(5), **TIGHT)
