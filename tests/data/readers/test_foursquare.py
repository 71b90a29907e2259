import pytest

from dips.errors import DataError

APRIL_3 = 1_333_476_007
CHECKINS = (
    "9\tv2\tWed Apr 04 11:32:47 +0000 2012\t120\n"
    "9\tv1\tTue Apr 03 18:00:07 +0000 2012\t-420\n"
    "4\tv1\tTue Apr 03 18:00:07 +0000 2012\t-420\n"
)
POIS = "v1\t41.0\t28.9\tCafé\tTR\nv2\t40.7\t-74.0\tTrain Station\tUS\nv3\t0\t0\tBar\tUS\n"
EVENTS = {"4": [("v1", APRIL_3)], "9": [("v1", APRIL_3), ("v2", 1_333_539_167)]}
NYC = (
    "470\tv1\tc1\tCafé\t40.71\t-74.00\t-240\tTue Apr 03 18:00:09 +0000 2012\n"
    "979\tv2\tc2\tBridge\t40.60\t-74.04\t-240\tTue Apr 03 18:00:25 +0000 2012\n"
).encode("latin-1")
TKY = b"1\tw\tc\tShrine\t35.7\t139.7\t540\tTue Apr 03 18:17:18 +0000 2012\n" * 2
TSMC = {"dataset_TSMC2014_NYC.txt": NYC, "dataset_TSMC2014_TKY.txt": TKY,
        "dataset_TSMC2014_readme.txt": "about"}  # fmt: skip


@pytest.mark.parametrize(
    "names",
    [
        ("dataset_WWW_Checkins_anonymized.txt", "raw_POIs.txt"),
        ("dataset_TIST2015_Checkins.txt", "dataset_TIST2015_POIs.txt"),
    ],
)
@pytest.mark.parametrize("how", ["folder", "zip", "file"])
def test_global_checkins(names, how, folder, packed, read, events):
    files = dict(zip(names, (CHECKINS, POIS), strict=True))
    path = packed(files) if how == "zip" else folder(files)
    data = read(path / names[0] if how == "file" else path)
    assert events(data) == EVENTS
    assert not data.explicit
    assert [data.categories[item] for item in (0, 1)] == [["Café"], ["Train Station"]]


def test_venues_are_not_required(folder, read):
    data = read(folder({"dataset_TIST2015_Checkins.txt": CHECKINS}))
    assert data.categories is None


def test_two_cities(folder, packed, read, events):
    path = packed(TSMC)
    with pytest.raises(DataError, match="choose with --layout foursquare-nyc or"):
        read(path)
    data = read(path, "foursquare-nyc")
    assert events(data) == {"470": [("v1", APRIL_3 + 2)], "979": [("v2", APRIL_3 + 18)]}
    assert data.categories[0] == ["Café"]
    assert len(read(path, "foursquare-tky")) == 2
    assert len(read(folder(TSMC) / "dataset_TSMC2014_TKY.txt")) == 2


def test_a_bad_time_is_named(folder, read):
    text = CHECKINS + "4\tv1\tTue Apr 33 18:00:07 +0000 2012\t-420\n"
    with pytest.raises(DataError, match=r"Checkins\.txt, line 4: time 'Tue Apr 33 .* is not like"):
        read(folder({"dataset_TIST2015_Checkins.txt": text}))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("4\tv1", "line 4: too few fields"),
        ("-4\tv1\tTue Apr 03 18:00:07 +0000 2012\t0", "line 4: user -4 is negative"),
        ("x\tv1\tTue Apr 03 18:00:07 +0000 2012\t0", "line 4: user is not a whole number"),
    ],
)
def test_a_bad_line_is_named(folder, read, line, complaint):
    with pytest.raises(DataError, match=complaint):
        read(folder({"dataset_TIST2015_Checkins.txt": CHECKINS + line + "\n"}))


def test_venues_must_be_utf8(folder, read):
    files = {"dataset_TIST2015_Checkins.txt": CHECKINS,
             "dataset_TIST2015_POIs.txt": POIS.encode("latin-1")}  # fmt: skip
    with pytest.raises(DataError, match=r"POIs\.txt, line 1: not UTF-8"):
        read(folder(files))


def test_an_unknown_city(folder, read):
    with pytest.raises(DataError, match=r"no .*'dataset_TSMC2014_TKY\.txt' inside"):
        read(folder({"dataset_TSMC2014_NYC.txt": NYC}), "foursquare-tky")
