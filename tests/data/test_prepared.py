import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dips.data.interactions import Categories, Strings, from_arrays
from dips.data.prepared import open_prepared, write
from dips.errors import DataError


@pytest.fixture
def data():
    return from_arrays(
        [0, 0, 1],
        [1, 0, 1],
        [4.5, 1.0, 3.0],
        [1, 2, 3],
        user_ids=["ü", "b"],
        item_ids=["x", "yy"],
        titles=Strings.of(["", "Été"]),
        categories=Categories.of([[], ["p", "q"]]),
        about={"name": "toy"},
    )


def test_round_trip(data, tmp_path, events):
    path = tmp_path / "deep" / "toy.safetensors"
    write(data, path)
    again = open_prepared(path)
    assert events(again) == events(data)
    assert list(again.titles) == ["", "Été"]
    assert again.categories[1] == ["p", "q"]
    assert again.name == "toy"
    assert again.rating_range() == (1.0, 4.5)
    assert [file.name for file in path.parent.iterdir()] == ["toy.safetensors"]


def test_missing_columns_stay_missing(tmp_path):
    write(from_arrays([0, 1], [0, 0]), tmp_path / "x.safetensors")
    again = open_prepared(tmp_path / "x.safetensors")
    assert again.rating is again.time is again.titles is again.categories is None


def test_columns_are_memory_mapped_and_the_file_is_not_changed(data, tmp_path):
    path = tmp_path / "x.safetensors"
    write(data, path)
    before = path.read_bytes()
    again = open_prepared(path)
    for column in (again.item, again.rating, again.time, again.user_ids.blob):
        base = column
        while not isinstance(base, np.memmap) and base is not None:
            base = base.base
        assert isinstance(base, np.memmap)
    again.item[0] = 7
    assert path.read_bytes() == before


def test_a_part_is_written_with_its_own_users(data, tmp_path, events):
    write(data.select([1]), tmp_path / "x.safetensors")
    again = open_prepared(tmp_path / "x.safetensors")
    assert events(again) == {"b": [("yy", 3.0, 3)]}
    assert len(again.item) == 1


@pytest.mark.parametrize("keep", [0, 4, 60, 0.5, -1])
def test_a_cut_file_is_refused(data, tmp_path, keep):
    path = tmp_path / "x.safetensors"
    write(data, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole)) if isinstance(keep, float) else keep])
    with pytest.raises(DataError, match=r"x\.safetensors: .*make it again with 'dips data prep"):
        open_prepared(path)


def test_other_files_are_refused(data, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_text("user,item\n1,2\n3,4\n")
    with pytest.raises(DataError, match="cannot be read as a safetensors file"):
        open_prepared(path)
    save_file({"weight": np.zeros(3, np.float32)}, path)
    with pytest.raises(DataError, match="is a safetensors file, but not a prepared dataset"):
        open_prepared(path)
    with pytest.raises(DataError, match="there is no such file"):
        open_prepared(tmp_path / "absent.safetensors")


def rewritten(data, path, metadata=(), **arrays):
    write(data, path)
    held = load_file(path)
    facts = {"format": "dips-interactions", "version": "1", "about": "{}"} | dict(metadata)
    held |= arrays
    save_file({name: a for name, a in held.items() if a is not None}, path, facts)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"metadata": {"version": "99"}}, "has version 99, this dips reads 1"),
        ({"item": None}, "is incomplete .'item'"),
        ({"rating": np.zeros(2, np.float32)}, "the columns of events differ in length"),
        ({"warmup": np.zeros(9, np.int64)}, "the columns of users differ in length"),
        ({"starts": np.array([0, 9])}, "a user's events lie outside the columns"),
        ({"user_ids.blob": np.zeros(1, np.uint8)}, "a vocabulary is cut short"),
    ],
)
def test_inconsistent_sizes_are_refused(data, tmp_path, change, complaint):
    path = tmp_path / "x.safetensors"
    rewritten(data, path, **change)
    with pytest.raises(DataError, match=complaint):
        open_prepared(path)


def test_a_failed_write_leaves_no_file(data, tmp_path, monkeypatch):
    def half(arrays, path, metadata):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("dips.data.prepared.save_file", half)
    with pytest.raises(DataError, match=r"x\.safetensors: cannot be written \(disk full\)"):
        write(data, tmp_path / "x.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_file_opens_without_polars(data, tmp_path):
    path = tmp_path / "x.safetensors"
    write(data, path)
    code = f"""
import json, sys
import dips.data.interactions, dips.data.splitting, dips.data.filtering
from dips.data.catalog import open_data
data = open_data({str(path)!r})
print(json.dumps([len(data), [name for name in sys.modules if name.startswith("polars")]]))
"""
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert json.loads(run.stdout) == [3, []]
