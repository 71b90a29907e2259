"""The policies that look at order, lots and repeats, on cases worked out by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from dips.errors import ConfigError
from dips.policy.base import Policy, signals_of
from dips.policy.frequency import Frequent
from dips.policy.hardest import Hardest
from dips.policy.influence import Influence
from dips.policy.recency import KeepAll, Last, LastDistinct
from dips.policy.registry import make_policy
from dips.policy.reservoir import Mix, Reservoir
from dips.sketch.records import Candidates, Sketch, empty
from dips.sketch.selection import Greedy
from dips.sketch.signals import SIGNALS, Signals
from dips.sketch.update import join, refresh
from dips.testing import fake_signals, random_candidates

KEY = torch.tensor([11])


def _kept(policy: Policy, items: str, size: int, period: int = 1) -> str:
    """The items that stay of a history given as letters, oldest first."""
    sketch = empty(1, size)
    first = min(size, len(items))
    bounds = [0, first, *range(first + period, len(items) + 1, period)]
    for start, end in pairwise(bounds):
        place = torch.arange(start, end)[None]
        item = torch.tensor([[ord(letter) for letter in items[start:end]]])
        arrivals = Sketch(place, item, place.float(), place * 60, place * 0 + 1, place * 0)
        sketch = refresh(
            sketch,
            arrivals,
            torch.tensor([end]),
            KEY,
            lambda _, candidates: policy.score(candidates, Signals()),
            Greedy(),
        )
    return "".join(chr(item) for item in sketch.item[sketch.present].tolist())


@pytest.mark.parametrize(
    ("history", "kept"),
    [
        ("abcd", "bcd"),
        ("abcbd", "cbd"),  # the older b makes room, not the older a or c
        ("abcbbb", "acb"),  # repeats of b cost one slot
        ("aaaa", "aaa"),  # nothing else to keep: repeats fill what is left
        ("aaaab", "aab"),
        ("aab", "aab"),  # it all fits
        ("abcdaea", "dea"),
    ],
)
def test_last_distinct(history: str, kept: str) -> None:
    assert _kept(LastDistinct(), history, 3) == kept


def test_last_distinct_in_batches() -> None:
    assert _kept(LastDistinct(), "abcbbbd", 3, period=4) == "cbd"
    assert _kept(LastDistinct(), "abcabcabc", 3, period=3) == "abc"


@pytest.mark.parametrize(
    ("history", "kept"),
    [
        ("abcd", "bcd"),  # all once: newer first
        ("aabcd", "acd"),  # a came twice, so b goes
        ("aabacd", "acd"),  # one a stands for three
        ("abbcca", "bca"),
        ("aabbccde", "abc"),  # what came once does not push out what came twice
    ],
)
def test_frequent(history: str, kept: str) -> None:
    assert _kept(Frequent(), history, 3) == kept


def test_frequent_counts_repeats_inside_a_batch() -> None:
    assert _kept(Frequent(), "abcdddeee", 3, period=6) == "cde"
    assert _kept(Frequent(), "abcaad", 2, period=4) == "ad"


def test_last_and_everything() -> None:
    assert _kept(Last(), "abcdefg", 3) == "efg"
    assert _kept(Last(), "abcdefg", 3, period=4) == "efg"
    assert KeepAll.keeps_all
    assert not Last.keeps_all


def test_reservoir_gives_each_interaction_one_lot_for_life() -> None:
    first, later = (random_candidates(seed=seed)[1] for seed in (0, 1))
    position = torch.arange(5).expand(6, -1)
    one = first._replace(position=position)
    other = later._replace(position=position.flip(1), key=first.key, seen=later.seen + 9)
    lots = Reservoir().score(one, Signals())
    assert torch.equal(lots, Reservoir().score(other, Signals()).flip(1))
    assert bool(((lots >= 0) & (lots < 1)).all())


def test_mix_puts_the_newest_first() -> None:
    candidates = random_candidates(size=3, period=2, seed=4)[1]
    scores = Mix(2).score(candidates, Signals())
    lots = Reservoir().score(candidates, Signals())
    newest = candidates.age < 2
    assert bool((scores[newest] >= 1).all())
    assert torch.equal(scores[~newest], lots[~newest])


def test_hardest_is_the_loss_and_fades_with_age() -> None:
    candidates = random_candidates(seed=2)[1]
    signals = fake_signals(candidates, arrivals=2)
    there = candidates.present
    plain = Hardest().score(candidates, signals)
    assert torch.equal(plain[there], signals.loss[there])
    faded = Hardest(half_life=4.0).score(candidates, signals)
    half = 0.5 ** (candidates.age.double() / 4)
    torch.testing.assert_close(faded[there], (plain * half)[there])


def test_flags() -> None:
    """Training decides by these when to walk anew."""
    made: list[Policy] = [Last(), LastDistinct(), KeepAll(), Frequent(), Reservoir(), Mix(1)]
    made += [Hardest(), Influence(2)]
    flags = {type(p).__name__: (p.required_signals, p.is_random, p.keeps_all) for p in made}
    assert flags == {
        "Last": ((), False, False),
        "LastDistinct": ((), False, False),
        "KeepAll": ((), False, True),
        "Frequent": ((), False, False),
        "Reservoir": ((), True, False),
        "Mix": ((), True, False),
        "Hardest": (("loss",), False, False),
        "Influence": (("read",), False, False),
    }


def test_questions() -> None:
    """True means any signal; a name that is none is refused."""
    policy = Last()
    for required_signals, meant in ((True, SIGNALS), (False, ()), ((), ()), (("loss",), ("loss",))):
        policy.required_signals = required_signals
        assert signals_of(policy) == meant
    for wrong in (("loss", "losses"), "loss"):
        policy.required_signals = wrong  # type: ignore[assignment]
        with pytest.raises(
            ConfigError, match="a tuple of loss, residual, predicted_score, embedding, read"
        ):
            signals_of(policy)


def test_repeats_of_a_join() -> None:
    place = torch.arange(4)[None]
    item, zero = torch.tensor([[1, 2, 1, 1]]), place * 0
    arrivals = Sketch(place, item, place.float(), place, zero + 1, zero)
    candidates = join(empty(1, 2), arrivals, torch.tensor([4]), KEY)
    assert candidates.repeats.tolist() == [[0, 0, 1, 1, 2, 3]]


def test_likely_keeps_the_newest_and_what_is_expected() -> None:
    """The newest whatever is expected; of the others the likeliest, however old."""
    place = torch.tensor([[2, 5, 6, 10, 11]])
    zero, ones = torch.zeros_like(place), torch.ones_like(place)
    seen = torch.tensor([12])
    candidates = Candidates(place, place, ones.float(), zero, ones, zero, seen, seen)

    predicted = torch.tensor([[7.0, -2.0, 3.0, -90.0, -1e6]]).double()
    signals = Signals.of({"predicted_score": predicted})
    for newest, size, kept in ((1, 2, [2, 11]), (1, 3, [2, 6, 11]), (2, 3, [2, 10, 11]),
                               (2, 4, [2, 6, 10, 11])):  # fmt: skip
        scores = make_policy(f"last-top:{newest}", size=size).score(candidates, signals)
        slots = Greedy().choose(scores, candidates, size)
        assert place.gather(1, slots.sort(1).values)[0].tolist() == kept
