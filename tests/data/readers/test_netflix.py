import io
import tarfile

import pytest

from dips.data.readers import netflix
from dips.errors import DataError

DAY = 86_400
FILM_1 = "1:\n7,3,1970-01-03\n5,5,1970-01-02\n"
FILM_3 = "3:\n5,4,1970-01-02\n9,1,1970-01-01"
TITLES = "1,2003,Dinosaur, Planet\n2,2004,B\n3,NULL,Amélie\n".encode("latin-1")
COMBINED = {"combined_data_1.txt": FILM_1 + FILM_3, "movie_titles.csv": TITLES}
APART = {
    "training_set/mv_0000001.txt": FILM_1,
    "training_set/mv_0000003.txt": FILM_3,
    "movie_titles.txt": TITLES,
}
EVENTS = {
    "5": [("1", 5.0, DAY), ("3", 4.0, DAY)],
    "7": [("1", 3.0, 2 * DAY)],
    "9": [("3", 1.0, 0)],
}


@pytest.mark.parametrize("files", [COMBINED, APART], ids=["combined", "apart"])
@pytest.mark.parametrize("how", ["folder", "zip"])
def test_both_layouts(files, how, folder, packed, read, events):
    data = read(packed(files) if how == "zip" else folder(files))
    assert events(data) == EVENTS
    assert list(data.titles) == ["Dinosaur, Planet", "Amélie"]


def test_a_single_file(folder, read, events):
    path = folder({**COMBINED, "combined_data_2.txt": "8:\n1,1,2000-01-01\n"})
    assert events(read(path / "combined_data_1.txt")) == EVENTS
    assert "1" in events(read(path))


def test_the_tar_it_was_published_as(tmp_path, read, events):
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w") as tar:
        for name in ("training_set/mv_0000001.txt", "training_set/mv_0000003.txt"):
            _add(tar, name, APART[name].encode())
    with tarfile.open(tmp_path / "nf.tar.gz", "w:gz") as tar:
        _add(tar, "download/training_set.tar", inner.getvalue())
    assert events(read(tmp_path / "nf.tar.gz")) == EVENTS


def _add(tar, name, data):
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


@pytest.mark.parametrize("block", [1, 2, 18, 30, 1000])
@pytest.mark.parametrize("files", [COMBINED, APART], ids=["combined", "apart"])
def test_the_block_size_does_not_change_the_result(monkeypatch, folder, read, events, block, files):
    monkeypatch.setattr(netflix, "BLOCK", block)
    assert events(read(folder(files))) == EVENTS


@pytest.mark.parametrize(
    "line",
    ["7,6,2005-01-01", "7,0,2005-01-01", "7,3", "7", "", "x,3,2005-01-01", "-7,3,2005-01-01",
     "7,nan,2005-01-01", "7,3,soon", "7:3,4,2005-01-01"],
)  # fmt: skip
@pytest.mark.parametrize("block", [4, 1000])
def test_a_bad_line_is_named(monkeypatch, folder, read, line, block):
    monkeypatch.setattr(netflix, "BLOCK", block)
    text = f"1:\n5,5,1970-01-02\n{line}\n6,5,1970-01-02\n"
    with pytest.raises(DataError, match=r"combined_data_1\.txt, line 3: expected 'film:' or"):
        read(folder({"combined_data_1.txt": text}))


def test_a_date_that_does_not_exist(folder, read):
    with pytest.raises(DataError, match=r"combined_data_1\.txt: holds a user id or a date"):
        read(folder({"combined_data_1.txt": "1:\n5,5,2005-02-31\n"}))


def test_a_rating_without_a_film(folder, read):
    with pytest.raises(DataError, match="line 1: a rating before the first line 'film:'"):
        read(folder({"combined_data_1.txt": "5,5,2005-02-01\n"}))


def test_films_without_ratings(folder, read):
    with pytest.raises(DataError, match=r"there are no ratings in combined_data_1\.txt"):
        read(folder({"combined_data_1.txt": "1:\n2:\n"}))


def test_a_cut_title(folder, read):
    with pytest.raises(DataError, match=r"movie_titles\.csv, line 2: too few fields in '2,2004'"):
        read(folder({**COMBINED, "movie_titles.csv": "1,2003,A\n2,2004\n"}))


def test_real_sample(real_data, read):
    data = read(real_data / "raw" / "netflix-sample.zip")
    assert (data.users, data.items, len(data)) == (38_152, 20, 42_813)
    assert data.titles[0] == "Dinosaur Planet"
