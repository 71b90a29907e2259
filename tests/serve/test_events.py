"""Events: everything the contract names is read, everything else is refused by name."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dips.data.interactions import Side
from dips.data.side_information import Coded, SideInformation
from dips.serve.events import (
    LONGEST_LINE,
    LONGEST_NAME,
    Event,
    EventError,
    Rules,
    read_event,
    read_line,
)
from dips.serve.keeper import open_keeper
from tests.serve.models import make_model

GOOD = {"user": "u", "item": "i"}


def test_all_fields():
    line = b'{"user": 7, "item": "x", "rating": 4.5, "time": 12.9, "seq": 3, "mood": "good"}'
    assert read_line(line) == Event("7", "x", 4.5, 12, None, 3, {"mood": "good"})
    assert read_line(b'{"user": "u", "item": "i", "rating": null}') == Event("u", "i")
    assert read_event({**GOOD, "id": 12}).id == "12"
    assert read_event({**GOOD, "user": "u" * LONGEST_NAME, "seq": 2**63 - 2}).seq == 2**63 - 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"user": ""}, "user must be a text or a whole number, not ''"),
        ({"user": None}, "user must be a text or a whole number, not None"),
        ({"user": True}, "user must be a text"),
        ({"user": 1.5}, "user must be a text"),
        ({"item": ["x"]}, "item must be a text or a whole number, not list"),
        ({"item": "x" * (LONGEST_NAME + 1)}, f"item has {LONGEST_NAME + 1} bytes; {LONGEST_NAME}"),
        ({"item": "\ud800"}, "item is not valid Unicode"),
        ({"rating": "5"}, "rating must be a number, not '5'"),
        ({"rating": float("nan")}, "rating must be a number, not nan"),
        ({"rating": float("inf")}, "rating must be a number, not inf"),
        ({"rating": True}, "rating must be a number"),
        ({"time": 2**60}, "time must be a number"),
        ({"seq": -1}, "seq must be a whole number from 0 on, not -1"),
        ({"seq": 1.0}, "seq must be a whole number"),
        ({"seq": 2**63}, "seq must be a whole number"),
        ({"id": "x", "seq": 1}, "id and seq: give one of them"),
    ],
)
def test_refusals_name_the_field(change, reason):
    with pytest.raises(EventError) as error:
        read_event({**GOOD, **change})
    assert str(error.value).startswith(reason)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "the line is not JSON"),
        (b"[1]", "an event is an object with user and item, not list"),
        (b"\xff\xfe", "the line is not JSON"),
        (b"[" * 60_000, "the line is not JSON"),
        (b" " * (LONGEST_LINE + 1), f"the line has {LONGEST_LINE + 1} bytes"),
        (b'{"user": %s1, "item": 2}' % (b"1" * 5000), "the line is not JSON"),
    ],
)
def test_bad_lines(line, reason):
    with pytest.raises(EventError) as error:
        read_line(line)
    assert str(error.value).startswith(reason)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner)),
    max_leaves=5,
)
names = st.sampled_from(["user", "item", "rating", "time", "id", "seq", "other"])


@given(st.one_of(json_values, st.dictionaries(names, json_values)))
def test_hostile_values_are_read_or_refused(value):
    """Nothing else happens, and what is read goes through a keeper."""
    keeper = open_keeper(make_model("last", 2, loss="softmax"), "memory:")
    tally = keeper.observe_many([value, {"user": "u", "item": "1"}])
    assert tally.applied + len(tally.refused) == 2
    assert keeper.stats()["applied"] == tally.applied


@given(st.binary(max_size=60))
def test_hostile_lines_are_read_or_refused(line):
    try:
        event = read_line(line)
    except EventError:
        return
    assert json.loads(line)["item"] in (event.item, int(event.item))


def test_side_information_is_packed_as_data_is():
    """One number per event, equal to what `SideInformation.pack` makes of a column."""
    clock = Coded("time", 0, center=100.0, spread=50.0)
    minutes, device = Coded("minutes", 12, 3.0, 2.0), Coded("device", 24, names=("phone", "tv"))
    sides = SideInformation(time=True, clock=clock, columns=(minutes, device))
    rules = Rules(False, 0, 1, sides)
    given = [(120, 4.5, "tv"), (90, 2.0, "phone"), (100, 3.0, "radio")]
    events = [
        read_event({**GOOD, "time": t, "minutes": m, "device": d, "more": 1}) for t, m, d in given
    ]
    times, numbers, texts = zip(*given, strict=True)
    wanted = clock.codes(Side(np.array(times, np.float64)))
    wanted |= minutes.codes(Side.of(np.array(numbers))) << 12
    wanted |= device.codes(Side.of(np.array(texts))) << 24
    assert rules.pack(events).tolist() == wanted.tolist()
    unknown = rules.pack([read_event({**GOOD, "time": 100})])
    assert unknown.tolist() == clock.codes(Side(np.array([100.0]))).tolist()
    with pytest.raises(EventError, match="time is missing, and the run was trained on times"):
        rules.check(Event("u", "i"))
