"""Rules that depend on order only, on cases worked out by hand."""

from __future__ import annotations

import pytest

from dips.policy.recency import KeepAll, Last, LastDistinct
from tests.policy.histories import kept_items


def test_last_keeps_the_newest() -> None:
    assert kept_items(Last(), "abcdefg", 3) == "efg"
    assert kept_items(Last(), "abcdefg", 3, period=4) == "efg"
    assert KeepAll.keeps_all
    assert not Last.keeps_all


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
    assert kept_items(LastDistinct(), history, 3) == kept


def test_last_distinct_in_batches() -> None:
    assert kept_items(LastDistinct(), "abcbbbd", 3, period=4) == "cbd"
    assert kept_items(LastDistinct(), "abcabcabc", 3, period=3) == "abc"
