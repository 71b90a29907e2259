"""Event columns by name: every reader, filter and file keeps them with their events."""

import numpy as np
import polars as pl
import pytest

from dips.data import catalog, filtering
from dips.data.predefined_split import open_predefined_split
from dips.data.prepared import open_prepared, write
from dips.data.readers.columns import ColumnNames
from dips.errors import DataError
from dips.studies.sketches import reindex_items

CSV = (
    "user,item,rating,time,mood,minutes\n"
    "b,x,3,20,low,7\na,y,5,20,high,1.5\na,x,4,10,low,90\nc,y,2,30,calm,12\n"
)
SIDE = ColumnNames(side=("mood", "minutes"))
EXPECTED = {"a": [("low", 90.0), ("high", 1.5)], "b": [("low", 7.0)], "c": [("calm", 12.0)]}


def event_columns(data):
    """Return the event columns of each user's events."""
    mood, minutes = data.side["mood"], data.side["minutes"]
    return {
        data.user_id(user): [
            (mood.names[int(mood.values[event])], float(minutes.values[event]))
            for event in range(*data.events(user).indices(len(data.item)))
        ]
        for user in range(data.users)
    }


def test_text_tables(folder, read):
    data = read(folder({"x.csv": CSV}), columns=SIDE)
    assert event_columns(data) == EXPECTED
    assert not read(folder({"x.csv": CSV})).side


def test_parquet_tables(tmp_path, read):
    frame = pl.read_csv(CSV.encode()).with_columns(code=pl.Series(["1", "2", "1", "1"]))
    frame.write_parquet(tmp_path / "x.parquet")
    data = read(tmp_path / "x.parquet", columns=ColumnNames(side=("mood", "minutes", "code")))
    assert event_columns(data) == EXPECTED
    assert list(data.side["code"].names) == ["1", "2"]  # text stays text
    flags = frame.with_columns(flag=pl.col("minutes") > 5)
    flags.write_parquet(tmp_path / "y.parquet")
    flag = read(tmp_path / "y.parquet", columns=ColumnNames(side=("flag",))).side["flag"]
    assert flag.values.tolist() == [1.0, 0.0, 1.0, 1.0]


def test_recbole_tables(folder, read):
    header = "user:token\titem:token\trating:float\ttime:float\tmood:token\tminutes:float\n"
    text = header + CSV.split("\n", 1)[1].replace(",", "\t")
    data = read(folder({"x.inter": text}) / "x.inter", columns=SIDE)
    assert event_columns(data) == EXPECTED


def test_prepared_files(folder, read, tmp_path):
    data = read(folder({"x.csv": CSV}), columns=ColumnNames(side=("mood", "minutes")))
    path = tmp_path / "x.safetensors"
    write(data, path)
    assert event_columns(open_prepared(path)) == EXPECTED
    assert event_columns(catalog.open_data(str(path), columns=SIDE)) == EXPECTED
    write(data.select([0, 2]), path)  # a part has its own events only
    assert event_columns(open_prepared(path)) == {user: EXPECTED[user] for user in "ac"}


def test_filters_and_other_vocabularies(folder, read):
    data = read(folder({"x.csv": CSV}), columns=SIDE)
    assert event_columns(filtering.min_rating(data, 2.5)) == {user: EXPECTED[user] for user in "ab"}

    class TrainedModel:
        item_ids = data.item_ids.take(np.array([0]))

    known = reindex_items(TrainedModel, data)  # knows the item x only
    assert event_columns(known) == {"a": [("low", 90.0)], "b": [("low", 7.0)]}


def test_a_predefined_split_shares_names(folder):
    files = {"a.csv": CSV, "b.csv": CSV.replace("calm", "angry"), "c.csv": CSV}
    root = folder(files)
    paths = [str(root / name) for name in files]
    read = lambda spec: catalog.read_data(spec, columns=SIDE)  # noqa: E731
    train, valid, test = open_predefined_split(*paths, read=read)
    assert event_columns(train) == event_columns(test) == EXPECTED
    assert event_columns(valid) == {**EXPECTED, "c": [("angry", 12.0)]}
    assert train.side["mood"].names is valid.side["mood"].names
    root = folder({"d.csv": CSV.replace("low", "1").replace("high", "2").replace("calm", "3")})
    with pytest.raises(DataError, match="'mood' holds numbers in one file and names in another"):
        open_predefined_split(paths[0], str(root / "d.csv"), paths[2], read=read)


def test_missing_columns_and_values_are_named(folder, read, tmp_path):
    path = folder({"x.csv": CSV}) / "x.csv"
    with pytest.raises(DataError, match=r"x.csv, line 1: there is no column 'joy' among user, it"):
        read(path, columns=ColumnNames(side=("joy",)))
    with pytest.raises(DataError, match="column 'rating' is read already"):
        read(path, columns=ColumnNames(side=("rating",)))
    blank = folder({"y.csv": CSV.replace("high", "")}) / "y.csv"
    with pytest.raises(DataError, match=r"y.csv, line 3: side mood is not a value in 'a,y,5,20,,1"):
        read(blank, columns=SIDE)
    odd = pl.read_csv(CSV.encode()).with_columns(minutes=pl.Series([1.0, float("nan"), 2.0, 3.0]))
    odd.write_parquet(tmp_path / "z.parquet")
    with pytest.raises(DataError, match=r"z.parquet, row 2: side minutes nan is not a number"):
        read(tmp_path / "z.parquet", columns=SIDE)
    with pytest.raises(DataError, match=r"planted: there is no column 'joy' .* no further columns"):
        catalog.open_data("planted", columns=ColumnNames(side=("joy",)))
