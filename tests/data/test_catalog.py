import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dips.data import catalog, filtering
from dips.data.catalog import CATALOG, fetch, open_data, prepared_copy
from dips.data.interactions import from_arrays
from dips.data.prepared import open_prepared, write
from dips.data.readers import layouts
from dips.errors import ConfigError, DataError, DataWarning

CSV = "user,item,rating\na,x,1\nb,y,2\n"
U_DATA = "1\t1\t5\t1\n2\t1\t4\t1\n"


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """Use an empty cache and shared directory."""
    monkeypatch.setenv("DIPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DIPS_DATA", str(tmp_path / "shared"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "home/.cache/dips"),
        ({"XDG_CACHE_HOME": "xdg"}, "xdg/dips"),
        ({"XDG_CACHE_HOME": "xdg", "DIPS_CACHE": "own"}, "own"),
    ],
)
def test_the_cache_follows_the_environment(variables, expected, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("DIPS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, folder in variables.items():
        monkeypatch.setenv(name, str(tmp_path / folder))
    assert catalog.cache() == tmp_path / expected


def test_every_entry_has_a_layout_and_a_recipe():
    for known in CATALOG.values():
        assert known.layout in layouts.LAYOUTS
        assert known.recipe in filtering.RECIPES
        assert known.url.startswith("http")


def test_a_dataset_has_the_name_of_its_file(folder, tmp_path):
    root = folder({"toy.csv": CSV})
    data = open_data(str(root / "toy.csv"))
    assert data.name == "toy"
    assert data.about["source"] == str(root / "toy.csv")
    write(data, tmp_path / "p.safetensors")
    assert open_data(str(tmp_path / "p.safetensors")).name == "toy"


def test_places_are_searched_in_order(folder, packed, tmp_path):
    reason = r"ml-100k is not available yet; .*'dips data fetch ml-100k'"
    with pytest.raises(DataError, match=reason):
        open_data("ml-100k")
    assert not catalog.is_available("ml-100k")
    download = tmp_path / "cache" / "downloads"
    download.mkdir(parents=True)
    packed({"u.data": U_DATA}).rename(download / "ml-100k.zip")
    assert len(open_data("ml-100k")) == 2

    raw = tmp_path / "shared" / "raw"
    raw.mkdir(parents=True)
    packed({"u.data": U_DATA + "3\t1\t1\t1\n"}).rename(raw / "ml-100k.zip")
    assert len(open_data("ml-100k")) == 3

    _parquet(tmp_path / "shared" / "ml-100k.parquet", 4)
    assert len(open_data("ml-100k")) == 4

    write(from_arrays(range(5), range(5)), prepared_copy("ml-100k"))
    assert len(open_data("ml-100k")) == 5
    assert open_data("ml-100k").name == "ml-100k"
    assert catalog.is_available("ml-100k")


def _parquet(path, rows):
    import polars as pl

    pl.DataFrame({"user": range(rows), "item": range(rows)}).write_parquet(path)


def test_raw_files_are_prepared_by_their_recipe_but_tables_are_not(packed, tmp_path):
    shared = tmp_path / "shared"
    (shared / "raw").mkdir(parents=True)
    lines = "".join(f"{user},{3 + user},2005-01-01\n" for user in range(2)) * 12
    packed({"combined_data_1.txt": f"1:\n{lines}5,3,2005-01-01\n2:\n{lines}"}).rename(
        shared / "raw" / "netflix.zip"
    )
    data = open_data("netflix")
    assert list(data.lengths) == [24, 24]
    assert data.about["recipe"] == "netflix"
    _parquet(shared / "netflix.parquet", 2)
    assert len(open_data("netflix")) == 2


def test_fetch_from_a_file(packed):
    path = fetch("ml-100k", origin=packed({"u.data": U_DATA}))
    assert path == prepared_copy("ml-100k")
    assert open_prepared(path).name == "ml-100k"


def test_fetch_of_a_bad_file_leaves_no_prepared_copy(packed, tmp_path):
    with pytest.raises(DataError, match=r"u\.data, line 1: too few"):
        fetch("ml-100k", origin=packed({"u.data": "1\t2\n"}))
    with pytest.raises(DataError, match="no such file"):
        fetch("ml-100k", origin=tmp_path / "absent.zip")
    assert not (tmp_path / "cache").exists()


def test_a_bad_download_is_removed(monkeypatch, tmp_path):
    def download(url, target, **kwargs):
        target.parent.mkdir(parents=True)
        target.write_bytes(b"half a zip")

    monkeypatch.setattr("dips.data.download.fetch", download)
    with pytest.raises(DataError, match=r"ml-1m\.zip: is not a complete archive"):
        fetch("ml-1m")
    assert list((tmp_path / "cache" / "downloads").iterdir()) == []


def test_fetch_downloads_with_the_known_checksum(monkeypatch, packed):
    asked = {}

    def download(url, target, **kwargs):
        asked.update(url=url, **kwargs)
        target.parent.mkdir(parents=True)
        packed({"u.data": U_DATA}).rename(target)

    monkeypatch.setattr("dips.data.download.fetch", download)
    assert len(open_prepared(fetch("ml-100k"))) == 2
    assert asked["url"] == "https://files.grouplens.org/datasets/movielens/ml-100k.zip"
    assert asked["md5"] == "0e33842e24a9c977be4e0107933c0723"


def test_downloads_by_hand_are_explained():
    with pytest.raises(
        DataError, match=r"by hand: get it from https.* fetch foursquare --from FILE"
    ):
        fetch("foursquare")
    with pytest.raises(DataError, match="there is nothing to fetch for 'x'"):
        fetch("x")


def test_unknown_names():
    with pytest.raises(DataError, match="nope: neither a file or directory nor a known name"):
        open_data("nope")


def test_a_single_user_is_refused(folder):
    root = folder({"x.csv": "user,item\na,x\na,y\n"})
    with pytest.raises(DataError, match=r"x\.csv: there is a single user, 'a', .*--user-col"):
        open_data(str(root / "x.csv"))


def test_synthetic_worlds_get_their_options(monkeypatch):
    calls = []

    def world(**options):
        calls.append(options)
        return replace(from_arrays([0, 1], [0, 1]), about={})

    fake = SimpleNamespace(stream=world, planted=world)
    monkeypatch.setitem(sys.modules, "dips.data.synthetic", fake)
    monkeypatch.setattr("dips.data.synthetic", fake, raising=False)
    names = [open_data(name).name for name in ("synthetic", "synthetic-implicit", "planted")]
    assert names == ["synthetic", "synthetic-implicit", "planted"]
    open_data("synthetic", options={"users": 3})
    assert calls == [{}, {"implicit": True}, {}, {"users": 3}]
    with pytest.raises(ConfigError, match="drift: planted takes users and seed only"):
        open_data("planted", options={"drift": 3, "users": 2})
    with pytest.raises(ConfigError, match="users: these options exist for synthetic"):
        open_data("ml-1m", options={"users": 3})


def test_a_file_of_another_dataset_is_refused(packed, monkeypatch):
    small = replace(CATALOG["ml-100k"], events=2)  # U_DATA has two
    monkeypatch.setitem(CATALOG, "ml-100k", small)
    with pytest.raises(DataError, match="is ml-100k, not ml-1m"):
        fetch("ml-1m", origin=packed({"u.data": U_DATA}))
    assert not prepared_copy("ml-1m").exists()
    assert fetch("ml-100k", origin=packed({"u.data": U_DATA})).exists()


def test_python_gets_the_summary_and_warnings(folder, caplog):
    path = folder({"x.csv": "user,item,rating,created\na,x,3,2020-01-01\nb,x,3,2020-01-02\n"})
    caplog.set_level("INFO", logger="dips")
    with pytest.warns(DataWarning) as found:
        data = open_data(str(path / "x.csv"))
    assert [str(one.message).split(": ")[1][:20] for one in found] == [
        "column 'created' loo",
        "all ratings are 3, s",
    ]
    assert caplog.messages == [str(data.read_summary)]
