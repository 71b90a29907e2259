import gzip
import io
import tarfile
import zipfile

import pytest

from dips.data.readers import source as source_module
from dips.data.readers.source import open_source
from dips.errors import DataError

FILES = {"a.txt": "one\ntwo\n", "deep/b.txt": "three"}


def test_a_directory_and_a_zip_have_the_same_files(folder, packed):
    with open_source(folder(FILES)) as plain, open_source(packed(FILES)) as zipped:
        for source in (plain, zipped):
            assert source.read(source.need("a.txt")) == b"one\ntwo\n"
            assert source.read(source.need("b.txt")) == b"three"
            assert source.first("c.txt") is None


def test_a_tar_shows_the_tars_inside_it(tmp_path):
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w") as tar:
        _add(tar, "training_set/mv_1.txt", b"1:\n")
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as tar:
        _add(tar, "download/training_set.tar", inner.getvalue())
        _add(tar, "download/movie_titles.txt", b"1,2003,A\n")
    with open_source(tmp_path / "x.tar.gz") as source:
        assert source.read(source.need("mv_*.txt")) == b"1:\n"
        assert source.read(source.need("movie_titles.txt")) == b"1,2003,A\n"


def _add(tar, name, data):
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


def test_a_single_file_comes_first_among_its_directory(folder):
    root = folder({"a.csv": "x", "b.csv": "y"})
    with open_source(root / "b.csv") as source:
        assert source.find("*.csv") == ["b.csv", "a.csv"]
        assert source.given == "b.csv"


@pytest.mark.parametrize("size", [1, 3, 4, 5, 100])
def test_blocks_are_whole_lines(folder, size):
    with open_source(folder({"a.txt": "one\ntwo\nthree"})) as source:
        blocks = list(source.blocks("a.txt", size))
    assert b"".join(blocks) == b"one\ntwo\nthree"
    assert all(block.endswith(b"\n") for block in blocks[:-1])


def test_gz_is_decompressed(folder):
    with open_source(folder({"a.csv.gz": gzip.compress(b"hello")})) as source:
        assert source.read("a.csv.gz") == b"hello"
        assert source.local("a.csv.gz") is None


def test_a_cut_gz_is_refused(folder):
    data = gzip.compress(bytes(range(256)) * 100)[:-20]
    with (
        open_source(folder({"a.csv.gz": data})) as source,
        pytest.raises(DataError, match=r"a\.csv\.gz: cannot be read .* download it again"),
    ):
        source.read("a.csv.gz")


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_a_cut_zip_is_refused(packed, keep):
    path = packed({"a.txt": "x" * 1000})
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    with pytest.raises(DataError, match=r"packed\.zip: is not a complete archive .*download"):
        open_source(path)


def test_a_zip_with_a_damaged_member_is_refused(packed):
    path = packed({"a.txt": "".join(map(str, range(1000)))})
    data = bytearray(path.read_bytes())
    data[200:220] = bytes(20)
    path.write_bytes(data)
    with open_source(path) as source, pytest.raises(DataError, match=r"inside/a\.txt: cannot be"):
        source.read("inside/a.txt")


def test_a_missing_path_is_refused(tmp_path):
    with pytest.raises(DataError, match="there is no such file or directory"):
        open_source(tmp_path / "absent")


def test_an_empty_file_is_refused(folder, packed):
    root = folder({"a.txt": ""})
    with pytest.raises(DataError, match=r"a\.txt: the file is empty"):
        open_source(root / "a.txt")
    with (
        open_source(packed({"a.txt": ""})) as source,
        pytest.raises(DataError, match=r"inside/a\.txt: the file is empty"),
    ):
        source.read("inside/a.txt")


@pytest.mark.parametrize("kind", ["zip", "tar.gz", "gz"])
def test_a_file_that_unpacks_to_far_more_is_refused(kind, tmp_path, monkeypatch):
    """Whole, or in blocks; the size that an archive claims is not asked."""
    monkeypatch.setattr(source_module, "MAX_SMALL_BYTES", 1000)
    text, path = b"1,2,3\n" * 200_000, tmp_path / f"x.csv.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
            made.writestr("x.csv", text)
    elif kind == "gz":
        path.write_bytes(gzip.compress(text))
    else:
        with tarfile.open(path, "w:gz") as tar:
            _add(tar, "x.csv", text)
    size = path.stat().st_size
    assert 100 * size + 1000 < len(text)
    with open_source(path) as source:
        name = source.need("x.csv*")
        reason = f"x.csv.*: it is more than 100 times as large as the file of {size} bytes"
        with pytest.raises(DataError, match=reason):
            source.read(name)
        with pytest.raises(DataError, match=reason):
            list(source.blocks(name, 100))
    monkeypatch.setattr(source_module, "MAX_SMALL_BYTES", len(text))
    with open_source(path) as source:
        assert source.read(name) == text
        assert b"".join(source.blocks(name, 1 << 16)) == text


def test_a_plain_file_may_have_any_size(tmp_path, monkeypatch):
    monkeypatch.setattr(source_module, "MAX_SMALL_BYTES", -1000)
    (tmp_path / "x.csv").write_bytes(b"1")
    with open_source(tmp_path / "x.csv") as source:
        assert source.read("x.csv") == b"1"
