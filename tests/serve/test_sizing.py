"""Bytes of typical records."""

import pytest

from dips.serve.records import record_length
from dips.serve.sizing import record_bytes


@pytest.mark.parametrize(
    ("size", "every", "rated", "expected"),
    [
        (1, 1, True, 24 + 11),  # nothing can repeat yet
        (2, 1, True, 24 + 2 * 12),  # item 3, rating 2, time 4, age 2, repeats 1
        (8, 1, True, 24 + 8 * 12),
        (8, 1, False, 24 + 8 * 10),
        (4, 4, True, 24 + 7 * 12),  # three interactions wait for the refresh
    ],
)
def test_bytes_of_typical_records(size, every, rated, expected):
    assert record_bytes(size, every, rated=rated) == expected


def test_a_typical_record_is_longer_than_the_narrowest_one():
    assert record_bytes(8, rated=True) > record_length(8)
