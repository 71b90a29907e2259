"""Item lists in every format, and invalid ones."""

from __future__ import annotations

import json

import polars
import pytest

from dips.data.readers.item_lists import read_item_lists
from dips.errors import DataError

LISTS = {"alice": ["1", "2", "3", "4"], "bob": ["5"]}


def write(folder, kind):
    if kind == "parquet":
        frame = {"user": list(LISTS), "items": list(LISTS.values()), "times": [[1, 2, 3, 4], [9]]}
        polars.DataFrame(frame).write_parquet(folder / "x.parquet")
    elif kind == "jsonl":
        lines = [json.dumps({"user": u, "items": items}) for u, items in LISTS.items()]
        (folder / "x.jsonl").write_text("\n".join(lines))
    else:
        table = {f"last:{user}": items[::-1] for user, items in LISTS.items()}
        (folder / "x.json").write_text(json.dumps(table))
    return folder / f"x.{kind}"


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "json"])
def test_all_formats_give_the_same_lists(kind, tmp_path):
    dump = {"newest_first": True, "prefix": "last:"} if kind == "json" else {}
    found = dict(read_item_lists(write(tmp_path, kind), **dump))
    assert {user: [entry["item"] for entry in entries] for user, entries in found.items()} == LISTS
    if kind == "parquet":
        assert [entry["time"] for entry in found["alice"]] == [1, 2, 3, 4]


def test_entries_of_lists(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"u": [["a", 7], {"item": "b", "rating": 2}, 3]}')
    ((user, entries),) = read_item_lists(path)
    assert user == "u"
    assert entries == [{"item": "a", "time": 7}, {"item": "b", "rating": 2}, {"item": 3}]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("x.csv", "", r"the name must end in \.jsonl, \.parquet, \.json"),
        ("x.jsonl", "{}", r"x\.jsonl, line 1: not of the form"),
        ("x.jsonl", '{"user": "u", "items": "abc"}', r"line 1: items is 'abc', not a list"),
        ("x.jsonl", '{"user": null, "items": []}', "line 1: user is missing"),
        ("x.jsonl", '{"user": true, "items": []}', "line 1: user is 'True', not a text or a whole"),
        ("x.jsonl", '{"user": 1.5, "items": []}', r"line 1: user is '1\.5', not a text"),
        ("x.jsonl", '{"user": ["u"], "items": []}', "line 1: user is .*, not a text"),
        ("x.jsonl", '{"user": "\\ud800", "items": []}', "line 1: user is not valid Unicode"),
        ("x.jsonl", "[" * 100_000, "line 1: not of the form"),
        (
            "x.jsonl",
            '{"user": "u", "items": ["a"], "ratings": []}',
            "line 1: ratings must be a list of 1 values",
        ),
        (
            "x.jsonl",
            '{"user": "u", "items": ["a"], "times": 3}',
            "line 1: times must be a list of 1",
        ),
        ("x.json", '{"": ["a"]}', "key '': user is missing"),
        ("x.json", '{"\\ud800": ["a"]}', "user is not valid Unicode"),
        ("x.json", "[" * 100_000, "not JSON"),
        ("x.json", '{"u": null}', "key 'u': items is 'None', not a list"),
        ("x.json", "[1]", "expected one object from keys to lists"),
        ("x.json", "{", "not JSON"),
        ("x.parquet", "PAR1", "cannot be read as Parquet"),
    ],
)
def test_bad_lists_are_named(name, text, reason, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=reason):
        list(read_item_lists(tmp_path / name))
    with pytest.raises(DataError, match="there is no such file"):
        list(read_item_lists(tmp_path / "none.json"))


@pytest.mark.parametrize(
    ("bad_row", "reason"),
    [
        ({"items": ["abc", "d"]}, r"row 1: items is 'abc', not a list; correct or remove"),
        ({"items": [["a"], None]}, r"row 2: items is 'None', not a list"),
        ({"ratings": [[1.0], [2.0]]}, r"row 1: ratings must be a list of 2 values, one per item"),
        ({"times": [[1, 2], [3, 4]]}, r"row 2: times must be a list of 1 values, one per item"),
        ({"times": [[1, 2], []]}, r"row 2: times must be a list of 1 values"),
        ({"times": [1, 2]}, r"row 1: times must be a list of 2 values"),
        ({"user": ["u", None]}, r"row 2: user is missing; give a user id or remove this row"),
    ],
)
def test_bad_parquet_rows_are_named(bad_row, reason, tmp_path):
    columns = {"user": ["u", "v"], "items": [["a", "b"], ["c"]], **bad_row}
    polars.DataFrame(columns).write_parquet(tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"x\.parquet, " + reason):
        list(read_item_lists(tmp_path / "x.parquet"))


def test_ratings_and_times_of_json_lines(tmp_path):
    row = {"user": 7, "items": ["a", "b"], "ratings": [4, None], "times": [1, 2]}
    (tmp_path / "x.jsonl").write_text(json.dumps(row))
    ((user, entries),) = read_item_lists(tmp_path / "x.jsonl")
    assert user == "7"
    assert entries == [
        {"item": "a", "rating": 4, "time": 1},
        {"item": "b", "rating": None, "time": 2},
    ]


def test_a_directory_is_no_list(tmp_path):
    (tmp_path / "x.jsonl").mkdir()
    with pytest.raises(DataError, match="there is no such file"):
        list(read_item_lists(tmp_path / "x.jsonl"))


def test_a_user_without_ratings_in_parquet_has_entries_without_them(tmp_path):
    columns = {"user": ["u", "v"], "items": [["a"], ["b"]], "ratings": [[4.0], None]}
    polars.DataFrame(columns).write_parquet(tmp_path / "x.parquet")
    found = dict(read_item_lists(tmp_path / "x.parquet"))
    assert found == {"u": [{"item": "a", "rating": 4.0}], "v": [{"item": "b"}]}
