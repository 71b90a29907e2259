import zipfile

import pytest

from dips.errors import DataError

U_ITEM = (
    "1|Toy Story (1995)|01-Jan-1995||http://x|0|1|1\n"
    "2|Misérables, Les (1995)|01-Jan-1995||http://x|0|0|1\n"
).encode("latin-1")
ML_100K = {
    "u.data": "2\t1\t3\t20\n1\t2\t5\t20\n1\t1\t4\t10\n",
    "u.item": U_ITEM,
    "u.genre": "unknown|0\nAction|1\nDrama|2\n\n",
}
ML_1M = {
    "ratings.dat": "2::10::3::20\n1::30::5::20\n1::10::4::10\n",
    "movies.dat": "10::Star Wars: Épisode::IV::Action|Drama\n30::B::Drama\n".encode("latin-1"),
    "users.dat": "1::F::1::10::48067\n",
}
ML_10M = {
    "ratings.dat": "2::10::0.5::20\n1::30::4.5::20\n1::10::4::10\n",
    "movies.dat": "10::Épisode::Action|Drama\n30::B::(no genres listed)\n",
    "tags.dat": "1::10::fun::1\n",
}


@pytest.mark.parametrize("how", ["folder", "file", "zip"])
def test_100k(how, folder, packed, read, events):
    path = packed(ML_100K) if how == "zip" else folder(ML_100K)
    data = read(path / "u.data" if how == "file" else path)
    assert events(data) == {"1": [("1", 4.0, 10), ("2", 5.0, 20)], "2": [("1", 3.0, 20)]}
    assert list(data.titles) == ["Toy Story (1995)", "Misérables, Les (1995)"]
    assert data.categories[0] == ["Action", "Drama"]
    assert data.categories[1] == ["Drama"]


@pytest.mark.parametrize("how", ["folder", "file", "zip"])
def test_1m(how, folder, packed, read, events):
    path = packed(ML_1M) if how == "zip" else folder(ML_1M)
    data = read(path / "ratings.dat" if how == "file" else path)
    assert events(data) == {"1": [("10", 4.0, 10), ("30", 5.0, 20)], "2": [("10", 3.0, 20)]}
    assert list(data.titles) == ["Star Wars: Épisode::IV", "B"]


def test_10m_has_half_stars_and_utf8_titles(folder, read, events):
    data = read(folder(ML_10M))
    assert events(data)["1"] == [("10", 4.0, 10), ("30", 4.5, 20)]
    assert data.titles[0] == "Épisode"
    assert data.categories[1] == []
    assert data.rating_range() == (0.5, 4.5)


def test_titles_are_not_required(folder, read):
    data = read(folder({"u.data": ML_100K["u.data"]}))
    assert data.titles is None
    assert data.categories is None


def test_ties_keep_the_order_of_the_file(folder, read, events):
    text = "1\t9\t3\t5\n2\t1\t1\t1\n1\t2\t3\t5\n1\t7\t3\t4\n1\t5\t3\t5\n"
    assert [event[0] for event in events(read(folder({"u.data": text})))["1"]] == list("7925")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("1::10::4", "line 3: too few fields in '1::10::4', no time"),
        ("1::10::6::7", "line 3: rating 6.0 is outside the scale from 1 to 5"),
        ("1::10::nan::7", "line 3: rating nan is not a number"),
        ("1::10::x::7", "line 3: rating is not a number in '1::10::x::7'"),
        ("-1::10::4::7", "line 3: user -1 is negative"),
        ("1::-10::4::7", "line 3: item -10 is negative"),
        ("1::ten::4::7", "line 3: item is not a whole number"),
        ("", "line 3: too few fields in ''"),
    ],
)
def test_a_bad_line_is_named(folder, read, line, complaint):
    text = f"2::10::3::20\n1::30::5::20\n{line}\n1::10::4::10\n"
    with pytest.raises(DataError) as error:
        read(folder({**ML_1M, "ratings.dat": text}))
    assert "ratings.dat, " in str(error.value)
    assert complaint in str(error.value)


def test_the_first_line_may_be_bad_too(folder, read):
    with pytest.raises(DataError, match=r"u\.data, line 1: too few fields in '1\\t2'"):
        read(folder({"u.data": "1\t2\n1\t2\t3\t4\n"}))


def test_half_stars_are_no_scale_of_1m(folder, read):
    with pytest.raises(DataError, match=r"ratings\.dat, line 1: rating 0\.5 is outside"):
        read(folder({**ML_1M, "ratings.dat": "2::10::0.5::20\n"}))


def test_10m_titles_must_be_utf8(folder, read):
    movies = b"10::A::Drama\n30::\xc9pisode::Drama\n"
    with pytest.raises(DataError, match=r"movies\.dat, line 2: not UTF-8 .* save the file as UTF"):
        read(folder({**ML_10M, "movies.dat": movies}))


def test_a_cut_film_list_is_refused(folder, read):
    with pytest.raises(DataError, match=r"movies\.dat, line 2: too few fields in '30::B'"):
        read(folder({**ML_1M, "movies.dat": "10::A::Drama\n30::B\n"}))
    with pytest.raises(DataError, match=r"u\.item, line 1: too few fields"):
        read(folder({**ML_100K, "u.item": "1|Toy\n"}, "other"))


def test_the_file_is_missing(folder, read):
    with pytest.raises(DataError, match=r"there is no 'u\.data' or 'ratings\.dat' inside"):
        read(folder({"movies.dat": "x"}), "movielens")


def test_real_1m(real_data, read):
    data = read(real_data / "raw" / "ml-1m.zip")
    table = read(real_data / "ml-1m.parquet")
    assert (data.users, data.items, len(data)) == (6040, 3706, 1_000_209)
    assert (data.item == table.item).all()
    assert (data.rating == table.rating).all()
    assert list(data.titles) == list(table.titles)
    assert list(data.item_ids) == list(table.item_ids)


def test_real_100k(real_data, read):
    data = read(real_data / "raw" / "ml-100k.zip")
    assert (data.users, data.items, len(data)) == (943, 1682, 100_000)
    assert data.titles[0] == "Toy Story (1995)"
    assert data.categories[0] == ["Animation", "Children's", "Comedy"]


def test_real_titles_of_10m(real_data, folder, read):
    with zipfile.ZipFile(real_data / "raw" / "ml-10m-movies.zip") as archive:
        movies = archive.read("ml-10M100K/movies.dat")
    ratings = "1::1::4.5::5\n2::65133::0.5::6\n"
    data = read(folder({"ratings.dat": ratings, "movies.dat": movies}))
    assert data.titles[0] == "Toy Story (1995)"
    assert data.categories[0][:2] == ["Adventure", "Animation"]
