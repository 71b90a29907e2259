import gzip

import polars as pl
import pytest

from dips.data.readers.columns import ColumnNames
from dips.errors import ConfigError, DataError

CSV = "userId,movieId,rating,timestamp\nu2,i1,3,20\nu1,i2,5,20\nu1,i1,4.5,10\n"
EVENTS = {"u1": [("i1", 4.5, 10), ("i2", 5.0, 20)], "u2": [("i1", 3.0, 20)]}


@pytest.mark.parametrize("separator", [",", "\t", ";", "|"])
def test_columns_and_separator_are_guessed(folder, read, events, separator):
    data = read(folder({"x.csv": CSV.replace(",", separator)}))
    assert events(data) == EVENTS


@pytest.mark.parametrize("how", ["file", "gz", "zip", "windows", "bom"])
def test_tables_in_directories_zips_and_files(how, folder, packed, read, events):
    files = {
        "file": {"x.csv": CSV},
        "gz": {"x.csv.gz": gzip.compress(CSV.encode())},
        "zip": {"x.csv": CSV},
        "windows": {"x.csv": CSV.replace("\n", "\r\n")},
        "bom": {"x.csv": "\ufeff" + CSV},
    }[how]
    path = packed(files) if how == "zip" else folder(files) / next(iter(files))
    assert events(read(path)) == EVENTS


def test_columns_can_be_named(folder, read, events):
    path = folder({"x.csv": "who,what,how,user\n1,a,2,9\n2,b,3,9\n"}) / "x.csv"
    data = read(path, columns=ColumnNames(user="who", item="what", rating="how"))
    assert events(data) == {"1": [("a", 2.0)], "2": [("b", 3.0)]}
    implicit = read(path, columns=ColumnNames(user="who", item="what"))
    assert not implicit.explicit


def test_columns_can_be_left_out(folder, read):
    data = read(folder({"x.csv": CSV}), columns=ColumnNames(rating="none", time="none"))
    assert not data.explicit
    assert data.time is None


def test_without_a_header_columns_are_numbers(folder, read, events):
    columns = ColumnNames(user="1", item="2", rating="3", time="4")
    assert events(read(folder({"x.csv": CSV.split("\n", 1)[1]}), columns=columns)) == EVENTS


def test_ids_keep_their_spelling(folder, read):
    text = "user,item\n1,0007\n2,7\n10,07\n"
    data = read(folder({"x.csv": text}))
    assert list(data.user_ids) == ["1", "2", "10"]
    assert list(data.item_ids) == ["0007", "07", "7"]


def test_quoted_fields(folder, read, events):
    text = 'user,item,title\n"a, b",x,"two\nlines"\nc,y,z\n'
    path = folder({"x.csv": text})
    assert events(read(path)) == {"a, b": [("x",)], "c": [("y",)]}
    (path / "x.csv").write_text(text + "d,,z\n")
    with pytest.raises(DataError, match=r"x\.csv, row 4: item is not a value"):
        read(path)


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("1970-01-02", 86_400),
        ("1970-01-01 00:01:40", 100),
        ("1970-01-01T00:01:40", 100),
        ("1e2", 100),
    ],
)
def test_times(folder, read, time, seconds):
    data = read(folder({"x.csv": f"user,item,time\n1,2,{time}\n2,2,{time}\n"}))
    assert data.time.tolist() == [seconds, seconds]


def test_parquet_with_items_beside_it(tmp_path, read, events):
    frame = pl.DataFrame({"user": [1, 0, 0], "item": [0, 1, 0], "rating": [3.0, 5, 4.5],
                          "timestamp": [20, 20, 10], "timestamp_exact": [True] * 3})  # fmt: skip
    frame.write_parquet(tmp_path / "x.parquet")
    items = {"item": [0, 1], "movie_id": [17, 4], "title": ["A", None], "genres": ["X|Y", None]}
    pl.DataFrame(items).write_parquet(tmp_path / "x_items.parquet")
    for path in (tmp_path, tmp_path / "x.parquet"):
        data = read(path)
        assert events(data) == {"0": [("17", 4.5, 10), ("4", 5.0, 20)], "1": [("17", 3.0, 20)]}
        assert list(data.titles) == ["A", ""]
        assert [data.categories[item] for item in (0, 1)] == [["X", "Y"], []]


def test_parquet_with_dates(tmp_path, read):
    frame = pl.DataFrame({"user": ["a", "b"], "item": ["x", "y"], "date": ["1970-01-02"] * 2})
    frame.with_columns(pl.col("date").str.to_date()).write_parquet(tmp_path / "x.parquet")
    assert read(tmp_path).time.tolist() == [86_400] * 2


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "user,rating\n1,2\n",
            "line 1: there is no column that looks like the item among user, rat",
        ),
        (CSV + "u3,i1\n", "line 5: too few fields in 'u3,i1', no time"),
        (CSV + "u3,i1,,9\n", "line 5: rating is not a number in 'u3,i1,,9'"),
        (CSV + "u3,i1,nan,9\n", "line 5: rating nan is not a number"),
        (CSV + "u3,i1,-inf,9\n", "line 5: rating -inf is not a number"),
        (CSV + "u3,i1,3,yesterday\n", "line 5: time 'yesterday' is neither seconds nor like"),
        ("user,item\n1,2\n-3,2\n", "line 3: user '-3' is negative; ids count from 0"),
        ("user,item\n", "x.csv: there are no interactions"),
        ("user,item\n\n\n", "line 2: too few fields"),
    ],
)
def test_bad_input_is_named(folder, read, text, complaint):
    with pytest.raises(DataError) as error:
        read(folder({"x.csv": text}))
    assert "x.csv" in str(error.value)
    assert complaint in str(error.value)


def test_text_must_be_utf8(folder, read):
    with pytest.raises(DataError, match=r"x\.csv, line 3: not UTF-8 in '2,caf"):
        read(folder({"x.csv": b"user,item\n1,a\n2,caf\xe9\n"}))


def test_a_given_column_must_exist(folder, read):
    with pytest.raises(
        DataError, match=r"line 1: there is no column 'who' .* name it with --user-"
    ):
        read(folder({"x.csv": CSV}), columns=ColumnNames(user="who"))


def test_bad_parquet_is_named(tmp_path, read):
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(DataError, match=r"x\.parquet: is not a complete Parquet file"):
        read(path)
    pl.DataFrame({"user": [1, 2], "item": [1, None]}).write_parquet(path)
    with pytest.raises(DataError, match=r"x\.parquet, row 2: item is missing"):
        read(path)
    pl.DataFrame({"user": [1, -2], "item": [1, 1]}).write_parquet(path)
    with pytest.raises(DataError, match=r"x\.parquet, row 2: user -2 is negative"):
        read(path)
    pl.DataFrame({"user": [1, 2], "item": [1, 1], "rating": ["a", "b"]}).write_parquet(path)
    with pytest.raises(DataError, match=r"column 'rating' is String, ratings are numbers"):
        read(path)


def test_two_tables_are_refused(folder, read):
    with pytest.raises(DataError, match=r"holds more than one table \(a\.csv, b\.csv\)"):
        read(folder({"a.csv": CSV, "b.csv": CSV}))


def test_column_names_are_refused_for_a_fixed_layout(folder, read):
    with pytest.raises(ConfigError, match="column names go with a table"):
        read(folder({"u.data": "1\t1\t1\t1\n"}), "movielens", columns=ColumnNames(user="x"))


def test_unknown_layouts(folder, read):
    with pytest.raises(ConfigError, match="unknown layout 'x': choose one of movielens"):
        read(folder({"x.csv": CSV}), "x")
    with pytest.raises(DataError, match=r"no layout has these files \(x\.doc\)"):
        read(folder({"x.doc": CSV}, "other"))


@pytest.mark.parametrize(
    ("text", "line"), [(CSV.replace("\n", "\r"), 1), (CSV.replace("u2,", "u\r2,"), 2)]
)
def test_carriage_returns_alone_end_no_line(folder, read, text, line):
    path = folder({"x.csv": text}) / "x.csv"
    with pytest.raises(DataError, match=rf"x\.csv, line {line}: cannot be split .* end lines with"):
        read(path)


def test_the_summary_names_columns_and_is_kept_by_parts(folder, read):
    path = folder({"x.csv": "who,what,when,mood\na,x,2020-01-01,up\nb,y,2020-01-02,down\n"})
    columns = ColumnNames(user="who", item="what", time="when", side=("mood",))
    data = read(path, columns=columns)
    assert data.read_summary.columns == {"user": "who", "item": "what", "time": "when"}
    assert (data.read_summary.side, data.read_summary.ignored) == (("mood",), ())
    assert str(data.select([0]).read_summary).endswith(
        "x.csv: user = who, item = what, time = when; side information: mood"
    )


@pytest.mark.parametrize(
    ("column", "values", "flag"),
    [
        ("created_at", ["2020-01-01", "2020-01-02"], "--time-col created_at"),
        ("reviewTime", ["01/02/2020", "11/12/2020"], "--time-col reviewTime"),
        ("event_date", ["5", "6"], "--time-col event_date"),
        ("number", ["1600000000", "1600000001"], "--time-col number"),
        ("number", ["1600000000000", "1600000000001"], "--time-col number"),
        ("user_stars", ["40", "50"], "--rating-col user_stars"),
        ("how", ["1", "2", "3.5"], "--rating-col how"),
        ("flag", ["0", "1"], None),
        ("device_id", ["1", "2", "3"], None),
        ("price", ["12.99", "7"], None),
        ("timezone", ["UTC", "CET"], None),
        ("created_by", ["ann", "bob"], None),
    ],
)
def test_columns_that_look_useful_get_a_warning(column, values, flag, folder, read):
    lines = "".join(f"u{row},i{row},{value}\n" for row, value in enumerate(values))
    summary = read(folder({"x.csv": f"user,item,{column}\n{lines}"})).read_summary
    assert summary.ignored == (column,)
    assert len(summary.warnings) == (flag is not None)
    assert all(f"{flag} or" in warning for warning in summary.warnings)


def test_a_second_column_of_times_names_the_first(folder, read):
    text = "user,item,time,timestamp_exact\na,x,1,2\nb,y,2,3\n"
    (warning,) = read(folder({"x.csv": text})).read_summary.warnings
    assert "'timestamp_exact' looks like a time and is not read, as 'time' is" in warning
    assert "--time-col timestamp_exact or --time-col time" in warning


@pytest.mark.parametrize(
    ("times", "sentence"),
    [
        ([1_600_000_000_000, 1_600_000_000_001], "look like milliseconds and count as seconds"),
        ([1_600_000_000, 1_600_000_001, -1], "1 times are not between 1989 and 2103, the first"),
        ([1_600_000_000, 1_600_000_001, 99_999_999_999], "one is 99999999999 (line 4); if"),
        ([7, 7], "all times are equal; the order of the file is used"),
        ([1, 2], None),
        ([1_600_000_000, 1_600_000_001], None),
    ],
)
def test_odd_times_get_a_warning(times, sentence, folder, read):
    lines = "".join(f"u{row},i{row},{time}\n" for row, time in enumerate(times))
    data = read(folder({"x.csv": f"user,item,time\n{lines}"}))
    assert data.time.tolist() == times
    assert len(data.read_summary.warnings) == (sentence is not None)
    assert all(sentence in warning for warning in data.read_summary.warnings)


@pytest.mark.parametrize(
    "time",
    ["1970-01-01 00:01:40.25", "1970-01-01T00:01:40Z", "1970-01-01 01:01:40+01:00"],
)
def test_times_with_fractions_and_offsets(folder, read, time):
    data = read(folder({"x.csv": f"user,item,time\n1,2,{time}\n2,2,{time}\n"}))
    assert data.time.tolist() == [100, 100]


def test_a_long_line_is_found_in_a_later_block(folder, read, monkeypatch):
    monkeypatch.setattr("dips.data.readers.delimited._BLOCK", 64)
    good = "user,item,title\n" + "".join(f'u{n},i{n},"a, {n}\nb"\n' for n in range(50))
    assert len(read(folder({"x.csv": good}))) == 50
    with pytest.raises(DataError, match=r"x\.csv, row 52: 4 fields, and line 1 has 3"):
        read(folder({"x.csv": good + "a,b,c,d\n"}))
