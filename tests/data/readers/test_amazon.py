import gzip
import json

import pytest

from dips.data.readers import amazon
from dips.errors import DataError

USER, OTHER = "A2SUAM1J3GNN3B", "A14VAT5EAX3D9S"
BOOK, DISC = "0000013714", "B000002UB2"
EVENTS = {OTHER: [(BOOK, 4.0, 9)], USER: [(DISC, 5.0, 7), (BOOK, 3.0, 8)]}
RATINGS = [(USER, BOOK, 3.0, 8), (OTHER, BOOK, 4.0, 9), (USER, DISC, 5.0, 7)]
META_2018 = {"asin": DISC, "title": "Kind of Blue", "category": ["CDs", "Jazz"]}
META_2014 = {"asin": BOOK, "title": "Heavenly", "categories": [["Books"], ["Books", "Hymns"]]}


def review(user, item, rating, time, **more):
    fields = {"reviewerID": user, "asin": item, "overall": rating, "unixReviewTime": time}
    return json.dumps({"reviewText": "good, \u00e9h", **fields, "helpful": [2, 3], **more})


REVIEWS = "\n".join(review(*row) for row in RATINGS)


def test_json_lines(folder, read, events):
    assert events(read(folder({"reviews_Books_5.json": REVIEWS}))) == EVENTS


def test_2018_has_the_same_fields_and_more(folder, packed, read, events):
    text = "\n".join(review(*row, verified=True, style={"Format:": "CD"}) for row in RATINGS)
    data = gzip.compress(text.encode())
    assert events(read(folder({"CDs_and_Vinyl_5.json.gz": data}))) == EVENTS
    assert events(read(packed({"CDs_and_Vinyl_5.json.gz": data}))) == EVENTS


def test_metadata_beside_the_reviews(folder, read):
    files = {
        "Books_5.json": REVIEWS,
        "meta_Books.json": f"{META_2014!r}\n{json.dumps(META_2018)}\n",
    }
    data = read(folder(files))
    assert list(data.titles) == ["Heavenly", "Kind of Blue"]
    assert [data.categories[item] for item in (0, 1)] == [["Books", "Hymns"], ["CDs", "Jazz"]]


@pytest.mark.parametrize("layout", ["amazon", None])
def test_ratings_only_of_both_years(folder, read, events, layout):
    of_2014 = "".join(f"{u},{i},{r},{t}\n" for u, i, r, t in RATINGS)
    of_2018 = "".join(f"{i},{u},{r},{t}\n" for u, i, r, t in RATINGS)
    for number, text in enumerate((of_2014, of_2018)):
        path = folder({"Books.csv": text}, f"year{number}")
        assert events(read(path, layout)) == EVENTS
        assert events(read(path / "Books.csv", layout)) == EVENTS


def test_the_order_can_be_given(folder, read, events):
    path = folder({"Books.csv": "a,b,1.0,5\nc,d,2.0,6\n"})
    with pytest.raises(DataError, match=r"cannot recognise which .* --layout amazon-2014"):
        read(path, "amazon")
    assert set(events(read(path, "amazon-2014"))) == {"a", "c"}
    assert set(events(read(path, "amazon-2018"))) == {"b", "d"}


def test_the_block_size_does_not_change_the_result(monkeypatch, folder, read, events):
    monkeypatch.setattr(amazon, "BLOCK", 10)
    assert events(read(folder({"Books_5.json": REVIEWS}))) == EVENTS


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"asin": "x"', "line 4: not JSON"),
        ("", "line 4: not JSON"),
        ('{"asin": "x"}', "line 4: reviewerID is None, not a text"),
        (review(USER, BOOK, "five", 1), "line 4: overall is 'five', not a number"),
        (review(USER, BOOK, 0, 1), "line 4: rating 0.0 is outside the scale from 1 to 5"),
        (review(USER, BOOK, float("nan"), 1), "line 4: overall is 'NaN', not a number"),
    ],
)
def test_a_bad_review_is_named(folder, read, line, complaint):
    text = f"{REVIEWS}\n{line}\n{review(USER, DISC, 5, 1)}\n"
    with pytest.raises(DataError) as error:
        read(folder({"Books_5.json": text}))
    assert "Books_5.json, " in str(error.value)
    assert complaint in str(error.value)


def test_reviews_must_be_utf8(folder, read):
    text = REVIEWS.encode() + b'\n{"asin": "caf\xe9"}\n'
    with pytest.raises(DataError, match=r"Books_5\.json, line 4: not UTF-8"):
        read(folder({"Books_5.json": text}))


def test_bad_metadata_is_named(folder, read):
    with pytest.raises(DataError, match=r"meta_Books\.json, line 2: not a product"):
        read(folder({"Books_5.json": REVIEWS, "meta_Books.json": f"{META_2014!r}\n{{'asin\n"}))
    with pytest.raises(DataError, match=r"meta_Books\.json, line 1: asin is missing"):
        read(folder({"Books_5.json": REVIEWS, "meta_Books.json": '{"title": "A"}\n'}, "other"))
