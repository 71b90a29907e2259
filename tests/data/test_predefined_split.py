import pytest

from dips.data.predefined_split import open_predefined_split
from dips.errors import DataError


def test_three_files_share_columns_and_vocabularies(folder, events):
    root = folder(
        {
            "train.csv": "user,item,rating\na,x,1\nb,y,2\n",
            "valid.csv": "user,item,rating\nc,z,3\n",
            "test.csv": "user,item,rating\na,z,5\nd,x,4\n",
        }
    )
    parts = open_predefined_split(
        *(str(root / f"{name}.csv") for name in ("train", "valid", "test"))
    )
    assert [events(part) for part in parts] == [
        {"a": [("x", 1.0)], "b": [("y", 2.0)]},
        {"c": [("z", 3.0)]},
        {"a": [("z", 5.0)], "d": [("x", 4.0)]},
    ]
    train, valid, test = parts
    assert train.item is valid.item is test.item
    assert train.item_ids is test.item_ids
    assert [part.rating_range() for part in parts] == [(1.0, 5.0)] * 3
    assert train.user_rows[0] == test.user_rows[0]


def test_titles_come_from_any_of_the_files(folder):
    files = {"u.data": "1\t1\t1\t1\n", "u.item": "1|A|||\n2|B|||\n"}
    first, second = folder(files, "one"), folder({**files, "u.data": "1\t2\t1\t1\n"}, "two")
    train, _, _ = open_predefined_split(str(first), str(second), str(second))
    assert list(train.titles) == ["A", "B"]


def test_all_or_none_have_ratings(folder):
    root = folder({"a.csv": "user,item,rating\na,x,1\n", "b.csv": "user,item\nc,z\n"})
    with pytest.raises(DataError, match="only a and a has a rating; give it in all three files"):
        open_predefined_split(str(root / "a.csv"), str(root / "b.csv"), str(root / "a.csv"))
