"""Score adjustments for items already read: a bonus where users repeat items, else a penalty.

For recommenders that read items in order, and for the dot product with a linearised inner loss.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from dips.recommender.base import Evidence

REPEAT_START = (1.0, 4.0, 2.0, 0.5)
"""Initial parameters where items repeat: gain, log odds, log of the age scale, and the power of
the decay before softplus.
"""
FILTER_START = (-5.0, 4.0, 2.0, -10.0)
"""Initial parameters where items do not repeat: a score of about -20 at any age."""
MAX_ITEMS = 1 << 24
"""Item numbers below this are exact in float32: a user vector holds them beside their scores."""
MAX_REPEATS = 1 << 24
"""More repeats than any item has."""
MIN_CHANGE, MAX_PENALTY = 1e-3, 60.0
"""Bounds of score changes that single precision can straighten."""


def check_item_numbers(items: int) -> None:
    """Raise ValueError if there are too many items for repeat scores."""
    if items > MAX_ITEMS:
        raise ValueError(
            f"{items} items: repeat_feature and filter_sketch support at most {MAX_ITEMS}"
        )


class RepeatScores(NamedTuple):
    """Scores of the items that were read. The width is that of a sketch, not of the catalogue.

    Each item has one place in a row. Unused places have a score of 0.
    """

    item: Tensor  # [rows, n] int64
    score: Tensor  # [rows, n]

    def of(self, items: Tensor) -> Tensor:
        """Return the scores of items, [rows, m]; 0 for items that were not read."""
        same = items[:, :, None] == self.item[:, None, :]
        return torch.where(same, self.score[:, None, :], 0).sum(2)

    def of_some(self, items: Tensor) -> Tensor:
        """Return the scores [rows, m] of items [m] that are the same for all rows.

        The cost does not depend on the number of items in the catalogue.
        """
        ascending, order = items.sort()
        at = torch.searchsorted(ascending, self.item).clamp_max(len(items) - 1)
        score = torch.where(ascending[at] == self.item, self.score, 0)
        found = self.score.new_zeros(len(at), len(items)).scatter_add(1, at, score)
        first = torch.searchsorted(ascending, ascending)  # an item may occur twice
        return found[:, torch.zeros_like(first).scatter(0, order, first)]


def repeat_scores(parameters: Tensor, item: Tensor, weight: Tensor, age: Tensor) -> RepeatScores:
    """Return gain * log(1 + odds * c) for each item, c the summed counts of its entries.

    An entry counts weight / (1 + age / scale)^power. With a gain of 1 the probability of an item is
    a mixture of what its vector predicts and of how often and how recently it occurred.

    Args:
        parameters: gain, log odds, log scale, power before softplus; [4].
        item: Items of the entries, [rows, n].
        weight: Weights of the entries, [rows, n].
        age: Steps since the entries, [rows, n].
    """
    gain, odds = parameters[:2].unbind()
    order = item.argsort(dim=1, stable=True)
    item, counts = item.gather(1, order), (weight * _decay(parameters, age)).gather(1, order)
    place = _places(item)
    total = torch.zeros_like(counts).scatter_add(1, place, counts)
    unique = torch.zeros_like(item).scatter(1, place, item)
    return RepeatScores(unique, gain * (odds.exp() * total).log1p())


def repeat_slope(parameters: Tensor, repeats: RepeatScores, entries: Evidence) -> Tensor:
    """Return the slope of an item's score in the weight of each of its entries, [rows, n].

    Args:
        parameters: As in `repeat_scores`.
        repeats: Scores of the items of a sketch.
        entries: Interactions, in the sketch or not.
    """
    gain, odds = parameters[:2].unbind()
    counts = own_repeats(entries) * _decay(parameters, entries.age)
    return gain * odds.exp() * counts / (repeats.of(entries.item) / gain).exp()


def _decay(parameters: Tensor, age: Tensor) -> Tensor:
    """[rows, n] (1 + age / scale)^-power."""
    scale, power = parameters[2:].unbind()
    return (-functional.softplus(power) * (age * (-scale).exp()).log1p()).exp()


def weighted_repeats(evidence: Evidence) -> Tensor:
    """Return weights times `own_repeats`, [rows, n]."""
    return evidence.weight * own_repeats(evidence)


def straightened_repeats(parameters: Tensor, evidence: Evidence) -> Tensor:
    """Return `weighted_repeats` whose weights are straightened for `repeat_scores`, [rows, n].

    The score of an item is concave in the weight of its entry. At weight 0 it is many times as
    steep as the change S that the entry makes. Straightened weights are 0 and 1 where weights are.
    In between, the score at weight z changes as in this table:

    | change            | score at weight z     | slope at 0 | what is linear in z     |
    |-------------------|-----------------------|------------|-------------------------|
    | S > 0, a bonus    | z S                   | S          | score of the item       |
    | S < 0, a penalty  | log(1 - z + z exp(S)) | exp(S) - 1 | exponentiated score     |

    A bonus matters most for the target, whose loss is linear in its score. A penalty matters for
    items that compete with the target: their probabilities are linear in exponentiated scores.

    Args:
        parameters: As in `repeat_scores`. They count as constants here.
        evidence: Entries, in the sketch or not.
    """
    repeats, weight = own_repeats(evidence), evidence.weight
    gain, odds = parameters[:2].detach().unbind()
    with torch.no_grad():
        counts = repeats * _decay(parameters, evidence.age) * odds.exp()
        others = _sum_of_duplicates(evidence.item, weight * counts) - weight * counts
        growth = (counts / (1 + others.clamp_min(0))).log1p().clamp_min(MIN_CHANGE)
        kept = (gain * growth).clamp(-MAX_PENALTY, -MIN_CHANGE).exp()
    masked = (1 - weight + weight * kept).log() / kept.log()
    share = torch.where(gain > 0, weight, masked)
    return repeats * torch.expm1(share * growth) / torch.expm1(growth)


def _sum_of_duplicates(item: Tensor, amount: Tensor) -> Tensor:
    """Return for each entry the sum of the amounts of all entries of its item, [rows, n]."""
    order = item.argsort(dim=1, stable=True)
    place = _places(item.gather(1, order))
    total = torch.zeros_like(amount).scatter_add(1, place, amount.gather(1, order))
    return torch.zeros_like(amount).scatter(1, order, total.gather(1, place))


def _places(item: Tensor) -> Tensor:
    """[rows, n] the number of smaller items before each one, for items in ascending order."""
    return (item != torch.cat([item[:, :1], item[:, :-1]], 1)).cumsum(1)


def own_repeats(evidence: Evidence) -> Tensor:
    """Return the repeats that each entry adds to its older duplicates, [rows, n]; at least 1.

    In a whole history every entry adds 1. An entry that was kept instead of others adds theirs too.
    """
    repeats = evidence.repeats
    if not repeats.shape[1]:
        return repeats
    order = evidence.item.argsort(dim=1, stable=True)
    item = evidence.item.gather(1, order)
    counted = torch.where(evidence.weight > 0, repeats, 0).gather(1, order).double()
    place = _places(item).double() * MAX_REPEATS
    so_far = (place + counted).cummax(1).values  # of one item: its place is above all counts
    before = torch.cat([torch.zeros_like(place[:, :1]), so_far[:, :-1]], 1) - place
    older = torch.zeros_like(repeats).scatter(1, order, before.clamp_min(0).to(repeats.dtype))
    return (repeats - older).clamp_min(1)
