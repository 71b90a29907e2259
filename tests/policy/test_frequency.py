"""Repeat counts decide, on cases worked out by hand."""

from __future__ import annotations

import pytest

from dips.policy.frequency import Frequent
from tests.policy.histories import kept_items


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
    assert kept_items(Frequent(), history, 3) == kept


def test_frequent_counts_repeats_inside_a_batch() -> None:
    assert kept_items(Frequent(), "abcdddeee", 3, period=6) == "cde"
    assert kept_items(Frequent(), "abcaad", 2, period=4) == "ad"
