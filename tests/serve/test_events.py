"""Events: valid fields are parsed, invalid ones are refused by name."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dips.data.interactions import EventColumn
from dips.data.side_information import ColumnEncoding, SideInformation
from dips.errors import ConfigError
from dips.serve.events import (
    MAX_LINE_BYTES,
    Event,
    EventError,
    EventSchema,
    parse_event,
    parse_line,
)
from dips.serve.fields import MAX_NAME_BYTES
from dips.serve.keeper import open_keeper
from dips.serve.reader import read_sketches
from tests.serve.models import make_model

GOOD = {"user": "u", "item": "i"}


def test_all_fields_are_parsed():
    line = b'{"user": 7, "item": "x", "rating": 4.5, "time": 12.9, "seq": 3, "mood": "good"}'
    assert parse_line(line) == Event("7", "x", 4.5, 12, None, 3, {"mood": "good"})
    assert parse_line(b'{"user": "u", "item": "i", "rating": null}') == Event("u", "i")
    assert parse_event({**GOOD, "id": 12}).id == "12"
    assert parse_event({**GOOD, "user": "u" * MAX_NAME_BYTES, "seq": 2**62 - 1}).seq == 2**62 - 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"user": ""}, "user must be a text or a whole number, not ''"),
        ({"user": None}, "user must be a text or a whole number, not None"),
        ({"user": True}, "user must be a text"),
        ({"user": 1.5}, "user must be a text"),
        ({"item": ["x"]}, "item must be a text or a whole number, not list"),
        (
            {"item": "x" * (MAX_NAME_BYTES + 1)},
            f"item has {MAX_NAME_BYTES + 1} bytes; at most {MAX_NAME_BYTES}",
        ),
        ({"item": "\ud800"}, "item is not valid Unicode"),
        ({"rating": "5"}, "rating must be a number, not '5'"),
        ({"rating": float("nan")}, "rating must be a number, not nan"),
        ({"rating": float("inf")}, "rating must be a number, not inf"),
        ({"rating": True}, "rating must be a number"),
        ({"time": 2**60}, "time must be a number"),
        ({"seq": -1}, "seq must be a whole number from 0 on, not -1"),
        ({"seq": 1.0}, "seq must be a whole number"),
        ({"seq": 2**62}, f"seq must be below {2**62}, not {2**62}"),
        ({"seq": np.bool_(True)}, "seq must be a whole number"),
        ({"rating": np.float32("nan")}, "rating must be a number"),
        ({"user": np.float64(3)}, "user must be a text or a whole number"),
        ({"id": "x", "seq": 1}, "id and seq: give one of them"),
    ],
)
def test_refusals_name_the_field(change, reason):
    with pytest.raises(EventError) as error:
        parse_event({**GOOD, **change})
    assert str(error.value).startswith(reason)


@pytest.mark.parametrize("field", ["user", "item", "id"])
def test_an_event_object_is_checked_like_a_line(field):
    """So none can be made that a line could not hold."""
    with pytest.raises(EventError, match=f"{field} is not valid Unicode"):
        Event(**{**GOOD, field: "\ud800"})
    with pytest.raises(EventError, match="rating must be a number"):
        Event("u", "i", float("nan"))
    with pytest.raises(EventError, match="give one of them"):
        Event("u", "i", id="x", seq=1)
    assert Event(3, 4, time=2.5) == parse_event({"user": "3", "item": "4", "time": 2.9})


def test_scalars_of_numpy_are_welcome():
    event = parse_event({
        "user": np.int64(7), "item": np.str_("x"), "rating": np.float32(4.5),
        "time": np.float64(12.9), "seq": np.uint8(3),
    })  # fmt: skip
    assert event == Event("7", "x", 4.5, 12, None, 3)
    assert [type(value) for value in (event.user, event.item, event.rating, event.seq)] == [
        str, str, float, int,
    ]  # fmt: skip
    with open_keeper(make_model(), "memory:") as keeper:
        assert keeper.observe(user=np.int32(7), item=np.int64(1), rating=np.int16(3))
        assert keeper.sketch(np.int64(7)).items == ["1"]
        assert len(keeper.recommend("7", n=np.int64(2))) == 2


@pytest.mark.parametrize("user", ["", None, True, 1.5, "\ud800", "x" * 513, b"u", ["u"]])
def test_names_are_checked_wherever_they_are_given(user, tmp_path):
    url = f"sqlite:{tmp_path}/s.db"
    with open_keeper(make_model(), url) as keeper:
        calls = (keeper.sketch, keeper.recommend, keeper.forget, keeper.readmit)
        for call in (*calls, lambda name: read_sketches(url, [name])):
            with pytest.raises(EventError, match="user "):
                call(user)


def test_a_number_is_the_name_of_its_digits(tmp_path):
    url = f"sqlite:{tmp_path}/s.db"
    with open_keeper(make_model(), url) as keeper:
        keeper.observe(5, 1, 3)
        assert keeper.sketch(5) == keeper.sketch("5") == read_sketches(url, [5])[0]
        assert keeper.sketch(5).items == ["1"]
        assert keeper.forget(5)


@pytest.mark.parametrize("n", [-5, 0, 1.0, "3", None, True])
def test_the_number_of_recommendations_is_checked(n):
    with (
        open_keeper(make_model(), "memory:") as keeper,
        pytest.raises(ConfigError, match=re.escape(f"n is {n!r}: it must be a whole number from")),
    ):
        keeper.recommend("u", n=n)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "the line is not JSON"),
        (b"[1]", "an event is an object with user and item, not list"),
        (b"\xff\xfe", "the line is not JSON"),
        (b"[" * 60_000, "the line is not JSON"),
        (b" " * (MAX_LINE_BYTES + 1), f"the line has {MAX_LINE_BYTES + 1} bytes"),
        (b'{"user": %s1, "item": 2}' % (b"1" * 5000), "the line is not JSON"),
    ],
)
def test_invalid_lines_are_refused(line, reason):
    with pytest.raises(EventError) as error:
        parse_line(line)
    assert str(error.value).startswith(reason)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner)),
    max_leaves=5,
)
names = st.sampled_from(["user", "item", "rating", "time", "id", "seq", "other"])


@given(st.one_of(json_values, st.dictionaries(names, json_values)))
def test_arbitrary_values_are_applied_or_refused(value):
    """Also by a keeper."""
    keeper = open_keeper(make_model("last", 2, loss="softmax"), "memory:")
    result = keeper.observe_many([value, {"user": "u", "item": "1"}])
    assert result.applied + len(result.refused) == 2
    assert keeper.stats()["applied"] == result.applied


@given(st.binary(max_size=60))
def test_arbitrary_lines_are_parsed_or_refused(line):
    try:
        event = parse_line(line)
    except EventError:
        return
    assert json.loads(line)["item"] in (event.item, int(event.item))


def test_side_information_of_events_is_packed_as_in_training():
    """Into one number per event, equal to the codes of the columns."""
    clock = ColumnEncoding("time", 0, center=100.0, spread=50.0)
    minutes, device = (
        ColumnEncoding("minutes", 12, 3.0, 2.0),
        ColumnEncoding("device", 24, names=("phone", "tv")),
    )
    sides = SideInformation(time=True, clock=clock, columns=(minutes, device))
    schema = EventSchema(False, 0, 1, sides)
    given = [(120, 4.5, "tv"), (90, 2.0, "phone"), (100, 3.0, "radio")]
    events = [
        parse_event({**GOOD, "time": t, "minutes": m, "device": d, "more": 1}) for t, m, d in given
    ]
    times, numbers, texts = zip(*given, strict=True)
    expected = clock.codes(EventColumn(np.array(times, np.float64)))
    expected |= minutes.codes(EventColumn.of(np.array(numbers))) << 12
    expected |= device.codes(EventColumn.of(np.array(texts))) << 24
    assert schema.pack_side(events).tolist() == expected.tolist()
    unknown = schema.pack_side([parse_event({**GOOD, "time": 100})])
    assert unknown.tolist() == clock.codes(EventColumn(np.array([100.0]))).tolist()
    with pytest.raises(EventError, match="time is missing, and the run was trained on times"):
        schema.validate(Event("u", "i"))


def test_events_may_have_every_rating_of_the_data_source():
    """The range of the training users clamps predictions; it does not refuse events."""
    model = make_model("last")
    model.rating_range = (0.5, 5.0)
    schema = EventSchema.from_model(model)
    schema.validate(Event("u", "i", 0.5))
    with pytest.raises(EventError, match=r"rating 0\.4 is outside the run's scale from 0\.5 to 5"):
        schema.validate(Event("u", "i", 0.4))
