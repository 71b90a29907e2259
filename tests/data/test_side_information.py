"""Side information: encodings from data, packing and unpacking."""

import json

import numpy as np
import pytest
import torch

from dips.data.interactions import Categories, EventColumn, from_arrays
from dips.data.side_information import (
    NO_SIDE_INFORMATION,
    ColumnEncoding,
    SideInformation,
    category_table,
    event_column_names,
    parse_names,
)
from dips.errors import ConfigError, DataError
from dips.stream.side_information import (
    categories_of,
    code_of,
    item_of,
    number_of,
    time_of,
    token,
)
from dips.stream.users import EventColumns

WEATHER = ["sun", "rain", "sun", "snow", "rain", "fog"]
PRICE = [1.0, 2.0, 300.0, -4.0, 5.0, 0.5]


@pytest.fixture
def data():
    return from_arrays(
        [0, 0, 0, 1, 1, 1],
        [0, 1, 2, 0, 1, 1],
        [1.0, 2.0, 3.0, 4.0, 5.0, 1.0],
        [10, 20, 30, 15, 25, 1000],
        item_ids=["a", "b", "c"],
        categories=Categories.of([["p", "q"], [], ["q"]]),
        side={"weather": EventColumn.of(WEATHER), "price": EventColumn.of(PRICE)},
        about={"name": "toy"},
    )


def test_names_are_parsed():
    assert parse_names(" categories, price,,price ") == ("categories", "price")
    assert event_column_names(("categories", "time", "price")) == ("price",)
    assert parse_names("") == ()


def test_columns_follow_their_events():
    """Rows may come in any order."""
    data = from_arrays(
        [1, 0, 1], [0, 1, 2], time=[5, 1, 3],
        side={"n": EventColumn.of([1.0, 2.0, 3.0]), "c": EventColumn.of(["x", "y", "z"])},
    )  # fmt: skip
    assert data.side["n"].values.tolist() == [2.0, 3.0, 1.0]
    assert [data.side["c"].names[code] for code in data.side["c"].values] == ["y", "z", "x"]


def test_packed_values_round_trip(data):
    sides = SideInformation.of(data, ("price", "time", "weather"))
    columns = EventColumns.of(data, side_information=sides)
    price, weather = sides.columns
    standard = (np.array(PRICE) - np.mean(PRICE)) / np.std(PRICE)
    found = number_of(columns.side, price)
    torch.testing.assert_close(found, torch.tensor(standard), atol=1 / 512 + 1e-9, rtol=0)
    assert torch.equal(found * 256, (found * 256).round())  # on a grid
    assert [weather.names[code - 1] for code in code_of(columns.side, weather)] == WEATHER
    assert torch.equal(item_of(columns.token), columns.item)
    seconds = (data.time - data.time.mean()) / data.time.std()
    torch.testing.assert_close(
        time_of(columns.token), torch.tensor(seconds), atol=1 / 512 + 1e-9, rtol=0
    )
    assert torch.equal(token(columns.item, columns.side), columns.token)


def test_without_names_there_is_no_side_information(data):
    columns = EventColumns.of(data)
    assert SideInformation.of(data, ()) == NO_SIDE_INFORMATION
    assert columns.token is columns.item
    assert not columns.side.any()
    assert columns.side.stride() == (0,)  # it takes no memory


def test_without_ratings_the_time_is_no_part_of_a_token(data):
    sides = SideInformation.of(data, ("time", "price"), timed=False)
    columns = EventColumns.of(data, side_information=sides)
    assert sides.time
    assert columns.token is columns.item
    assert torch.equal(token(columns.item, columns.side), columns.item)
    assert columns.side.all()


def test_values_are_clipped_and_unknown_ones_are_zero():
    column = ColumnEncoding("price", 12, center=10.0, spread=2.0)
    given = EventColumn(np.array([10.0, 1e9, -1e9, np.nan, 10.5]))
    numbers = number_of(torch.tensor(column.codes(given) << 12), column)
    assert numbers.tolist() == [0.0, 2047 / 256, -2047 / 256, 0.0, 0.25]
    named = ColumnEncoding("weather", 20, names=("rain", "sun"))
    codes = named.codes(EventColumn.of(["sun", "hail", "rain"]))
    assert code_of(torch.tensor(codes << 20), named).tolist() == [2, 0, 1]


def test_a_category_table_is_padded(data):
    assert category_table(data).tolist() == [[0, 1], [-1, -1], [1, -1]]
    sides = SideInformation.of(data, ("categories",))
    assert (sides.kinds, sides.width) == (2, 2)
    assert categories_of(sides, 3).tolist() == [[0, 1], [-1, -1], [1, -1]]


def test_to_dict_round_trips(data):
    sides = SideInformation.of(data, ("categories", "time", "weather", "price"))
    again = SideInformation.from_dict(json.loads(json.dumps(sides.to_dict())))
    assert again == sides
    assert again.names == ("weather", "price")
    assert again.table is None
    assert (categories_of(again, 3) == -1).all()  # until a state is loaded
    assert np.array_equal(again.pack(data), sides.pack(data))
    assert SideInformation.from_dict({}) == NO_SIDE_INFORMATION


def test_other_data_uses_the_same_encoding(data):
    sides = SideInformation.of(data, ("weather", "price"))
    other = from_arrays(
        [0, 1],
        [0, 0],
        side={"weather": EventColumn.of(["hail", "sun"]), "price": EventColumn.of([50.75, 2.0])},
    )
    packed = torch.tensor(sides.pack(other))
    assert code_of(packed, sides.columns[0]).tolist() == [0, 1 + sorted(set(WEATHER)).index("sun")]
    assert float(number_of(packed, sides.columns[1])[0]) == 0.0  # the mean of the first
    with pytest.raises(ConfigError, match="column 'price' held numbers in training, now names"):
        sides.pack(
            from_arrays([0, 1], [0, 0], side={**other.side, "price": EventColumn.of(["a", "b"])})
        )


@pytest.mark.parametrize("names", [("mood",), ("price", "mood")])
def test_unknown_names_are_refused_and_known_ones_listed(data, names):
    with pytest.raises(ConfigError, match="'mood': toy has no such column; it has weather, price"):
        SideInformation.of(data, names)
    bare = from_arrays([0], [0], about={"name": "bare"})
    for name in ("categories", "time"):
        with pytest.raises(ConfigError, match=f"'{name}': bare has no such column; it has nothing"):
            SideInformation.of(bare, (name,))
    with pytest.raises(ConfigError, match="'weather'"):
        SideInformation.of(data, ("weather",)).pack(bare)


def test_too_many_bits_are_refused(data):
    many = {f"n{place}": EventColumn.of(np.arange(6.0)) for place in range(5)}
    wide = from_arrays(np.arange(6), np.arange(6), side=many)
    SideInformation.of(wide, tuple(many)[:4])
    with pytest.raises(ConfigError, match="takes 72 bits of an event and there are 62"):
        SideInformation.of(wide, tuple(many))


def test_a_column_has_a_value_for_each_event():
    with pytest.raises(DataError, match="column 'n' has 2 values for 3 interactions"):
        from_arrays([0, 1, 2], [0, 0, 0], side={"n": EventColumn.of([1.0, 2.0])})


def test_statistics_and_names_come_from_the_given_users_only(data):
    """Names that training users do not have are unknown; their numbers are not averaged."""
    train = data.select([1])
    sides = SideInformation.of(train, ("weather", "price", "time", "categories"))
    weather, price = sides.columns
    assert weather.names == ("fog", "rain", "snow")
    assert (price.center, sides.clock.center) == (0.5, pytest.approx(1040 / 3))
    assert sides.kinds == 2  # the catalogue's
    codes = code_of(torch.from_numpy(sides.pack(data)), weather)
    assert codes.tolist() == [0, 2, 0, 3, 2, 1]
