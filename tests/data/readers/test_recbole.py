import pytest

from dips.errors import DataError

INTER = (
    "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    "u2\t10\t3.5\t20.0\nu1\t9\t5\t20\nu1\t10\t4\t1.0e1\n"
)
ITEM = (
    "item_id:token\tmovie_title:token_seq\tclass:token_seq\n9\tToy Story\tAction Drama\n10\tÉté\t\n"
)
EVENTS = {"u1": [("10", 4.0, 10), ("9", 5.0, 20)], "u2": [("10", 3.5, 20)]}


@pytest.mark.parametrize("how", ["folder", "file", "zip"])
def test_atomic_files(how, folder, packed, read, events):
    files = {"ml.inter": INTER, "ml.item": ITEM}
    path = packed(files) if how == "zip" else folder(files)
    data = read(path / "ml.inter" if how == "file" else path)
    assert events(data) == EVENTS
    assert list(data.item_ids) == ["9", "10"]
    assert list(data.titles) == ["Toy Story", "Été"]
    assert [data.categories[item] for item in (0, 1)] == [["Action", "Drama"], []]


def test_implicit(folder, read, events):
    data = read(folder({"x.inter": "user_id:token\titem_id:token\na\tb\nc\td\n"}))
    assert events(data) == {"a": [("b",)], "c": [("d",)]}
    assert not data.explicit


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("user_id\titem_id:token\na\tb\n", "line 1: column 'user_id' has no type"),
        (
            "item_id:token\titem2:token\na\tb\n",
            "line 1: there is no column that looks like the user",
        ),
        (INTER + "u3\t4\n", "line 5: too few fields in"),
        (INTER + "u3\t4\tfive\t4\n", "line 5: rating is not a number"),
        (INTER + "u3\t4\tNaN\t4\n", "line 5: rating nan is not a number"),
        (INTER + "u3\t-4\t3\t4\n", "line 5: item '-4' is negative"),
        (INTER + "u3\t4\t3\tinf\n", "line 5: time inf is not a time"),
    ],
)
def test_bad_input_is_named(folder, read, text, complaint):
    with pytest.raises(DataError) as error:
        read(folder({"x.inter": text}))
    assert "x.inter, " in str(error.value)
    assert complaint in str(error.value)


def test_bad_items_are_named(folder, read):
    with pytest.raises(DataError, match=r"x\.item, line 3: too few fields"):
        read(folder({"x.inter": INTER, "x.item": ITEM.replace("\tÉté\t", "")}))
    item = ITEM.encode("latin-1")
    with pytest.raises(DataError, match=r"x\.item, line 3: not UTF-8"):
        read(folder({"x.inter": INTER, "x.item": item}, "other"))
