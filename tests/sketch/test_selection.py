"""Choosing K: what holds for any scores, and that sampled choices follow their probabilities."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from dips.numerics.hashing import text_keys, uniform
from dips.numerics.topk import project_top_k, sample_by_inclusion
from dips.sketch.records import Candidates, Sketch
from dips.sketch.selection import SELECTION, Greedy, Sampled, Selector, gumbel_noise
from dips.testing import random_candidates

SELECTORS = [Greedy(), Sampled(), Sampled(temperature=0.2)]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Sketch, Candidates, Tensor]:
    """Candidates with random gaps, and scores full of ties and infinities."""
    size, period = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    sketch, candidates = random_candidates(
        users=5, size=size, period=period, seed=draw(st.integers(0, 10_000))
    )
    value = st.sampled_from([0.0, 1.0, -1.0, 2.5, 1e6, -1e6, float("inf"), float("-inf")])
    row = st.lists(value, min_size=size + period, max_size=size + period)
    scores = draw(st.lists(row, min_size=5, max_size=5))
    return sketch, candidates, torch.tensor(scores, dtype=torch.float64)


@pytest.mark.parametrize("selector", SELECTORS, ids=repr)
@given(case=cases())
def test_it_keeps_as_many_as_fit_in_order(
    selector: Selector, case: tuple[Sketch, Candidates, Tensor]
) -> None:
    sketch, candidates, scores = case
    size = sketch.position.shape[1]
    slots = selector.choose(scores, candidates, size)
    assert slots.shape == (5, size)
    chosen = candidates.entries.take(slots)
    for row in range(5):
        there = candidates.present[row]
        offered = candidates.position[row][there].tolist()
        kept = [place for place in chosen.position[row].tolist() if place >= 0]
        assert len(kept) == min(size, len(offered))
        assert kept == sorted(set(kept))
        assert set(kept) <= set(offered)
        assert chosen.position[row].tolist() == kept + [-1] * (size - len(kept))


@given(case=cases())
def test_greedy_is_a_sort_by_score_then_age(case: tuple[Sketch, Candidates, Tensor]) -> None:
    sketch, candidates, scores = case
    size = sketch.position.shape[1]
    kept = candidates.entries.take(Greedy().choose(scores, candidates, size)).position
    for row in range(5):
        offered = [
            (score, place)
            for score, place in zip(
                scores[row].tolist(), candidates.position[row].tolist(), strict=True
            )
            if place >= 0
        ]
        best = sorted(place for _, place in sorted(offered, reverse=True)[:size])
        assert [place for place in kept[row].tolist() if place >= 0] == best


def _crowd(scores: list[float], users: int) -> tuple[Candidates, Tensor]:
    """The same candidates for users with different keys."""
    width = len(scores)
    place = torch.arange(width).expand(users, -1)
    ones = torch.ones_like(place)
    seen = torch.full((users,), width)
    key = text_keys(map(str, range(users)))
    candidates = Candidates(place, place, ones.float(), ones, ones, ones, seen, key)
    return candidates, torch.tensor(scores).double().expand(users, -1)


SCORES = [0.3, -1.0, 1.5, 0.0, 0.8]


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_drop_one_follows_the_softmax_of_minus_score(temperature: float) -> None:
    candidates, scores = _crowd(SCORES, 20_000)
    slots = Sampled(temperature).choose(scores, candidates, 4)
    dropped = (10 - slots.sum(1)).numpy()
    chance = torch.softmax(-scores[0] / temperature, 0).numpy()
    counts = np.bincount(dropped, minlength=5)
    assert stats.chisquare(counts, chance * len(dropped)).pvalue > 0.001


@pytest.mark.parametrize("size", [1, 2, 3])
def test_keep_k_follows_the_projection(size: int) -> None:
    candidates, scores = _crowd(SCORES, 20_000)
    slots = Sampled().choose(scores, candidates, size)
    counts = torch.bincount(slots.flatten(), minlength=5)
    chance = project_top_k(scores[:1], size)[0].numpy()
    for count, share in zip(counts.tolist(), chance, strict=True):
        assert stats.binomtest(count, 20_000, share).pvalue > 0.001


def test_infinite_scores_are_certain() -> None:
    scores = [float("inf"), 0.0, 0.5, 0.0, float("-inf")]
    candidates, rows = _crowd(scores, 4000)
    slots = Sampled().choose(rows, candidates, 2)
    counts = torch.bincount(slots.flatten(), minlength=5).tolist()
    assert (counts[0], counts[4]) == (4000, 0)
    chance = torch.tensor([0.0, 0.5, 0.0]).double()
    share = project_top_k(chance[None], 1)[0].numpy()
    assert stats.chisquare(counts[1:4], share * 4000).pvalue > 0.001


def test_random_numbers_change_with_time_and_key_only() -> None:
    candidates, scores = _crowd(SCORES, 500)
    for size in (2, 4):
        first = Sampled().choose(scores, candidates, size)
        assert torch.equal(first, Sampled().choose(scores, candidates, size))
        later = candidates._replace(seen=candidates.seen + 1)
        assert not torch.equal(first, Sampled().choose(scores, later, size))
        other = candidates._replace(key=candidates.key + 1)
        assert not torch.equal(first, Sampled().choose(scores, other, size))


@pytest.mark.parametrize("size", [2, 4])
def test_random_numbers_do_not_depend_on_the_batch(size: int) -> None:
    candidates, scores = _crowd(SCORES, 60)
    noise = torch.randn(scores.shape, generator=torch.Generator().manual_seed(0)).double()
    scores = scores + noise
    together = Sampled().choose(scores, candidates, size)
    for piece in (1, 7, 59):
        parts = [
            Sampled().choose(
                scores[low : low + piece],
                Candidates(*(field[low : low + piece] for field in candidates)),
                size,
            )
            for low in range(0, 60, piece)
        ]
        assert torch.equal(torch.cat(parts), together)


def test_selection_and_policy_use_different_random_numbers() -> None:
    rows, width, size = 400, 6, 2
    position = torch.arange(width).expand(rows, -1)
    blank = torch.zeros(rows, width)
    seen, key = torch.full((rows,), width), text_keys(str(row) for row in range(rows))
    zero = blank.long()
    candidates = Candidates(position, zero, blank, zero, zero, zero, seen, key)
    slots = Sampled().choose(blank.double(), candidates, size)
    kept = torch.zeros(rows, width, dtype=torch.bool).scatter(1, slots, True)
    weights = torch.full((rows, width), size / width, dtype=torch.float64)
    assert torch.equal(kept, sample_by_inclusion(weights, uniform(key, SELECTION, seen)))
    assert not torch.equal(kept, sample_by_inclusion(weights, uniform(key, seen)))


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_the_dropped_candidate_has_the_largest_of_noise_minus_score(temperature: float) -> None:
    candidates = random_candidates(users=300, size=4, period=1, seed=4)[1]
    scores = _normal(300, 5)
    slots = Sampled(temperature).choose(scores, candidates, 4)
    removal = (gumbel_noise(candidates) - scores / temperature)[candidates.present.all(1)]
    dropped = (10 - slots.sum(1))[candidates.present.all(1)]
    assert len(dropped) > 100
    assert torch.equal(removal.argmax(1), dropped)


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).double()
