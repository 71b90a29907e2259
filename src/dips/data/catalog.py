"""The datasets we know by name, and where DATA is looked for. Reads nothing itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from dips.data import download, prepared
from dips.data.columns import Columns
from dips.data.filtering import prepare
from dips.data.interactions import Interactions
from dips.data.layouts import read_source
from dips.data.source import open_source
from dips.errors import ConfigError, DataError

_GROUPLENS = "https://files.grouplens.org/datasets/movielens"
_SNAP = "https://quantize.stanford.edu/data/amazon/productGraph/categoryFiles"
_YANG = "https://sites.google.com/site/yangdingqi/home/foursquare-dataset"
_TSMC = "http://www-public.tem-tsp.eu/~zhang_da/pub/dataset_tsmc2014.zip"


@dataclass(frozen=True, kw_only=True)
class Known:
    """One dataset of the catalogue."""

    about: str
    url: str
    """The file itself, or, where `by_hand`, the page to get it from."""
    layout: str
    recipe: str = "as-is"
    """The preparation of the raw files; a Parquet in $DIPS_DATA is taken as it is."""
    md5: str | None = None
    by_hand: bool = False
    events: int | None = None
    """How many events the raw files hold: what tells a file of another dataset."""


CATALOG: dict[str, Known] = {
    "ml-100k": Known(
        about="MovieLens 100K: 943 users, 1,682 films, 100,000 ratings",
        url=f"{_GROUPLENS}/ml-100k.zip",
        md5="0e33842e24a9c977be4e0107933c0723",
        events=100_000,
        layout="movielens",
    ),
    "ml-1m": Known(
        about="MovieLens 1M: 6,040 users, 3,706 films, 1,000,209 ratings",
        url=f"{_GROUPLENS}/ml-1m.zip",
        md5="c4d9eecfca2ab87c1945afe126590906",
        events=1_000_209,
        layout="movielens",
    ),
    "ml-10m": Known(
        about="MovieLens 10M: 69,878 users, 10,677 films, 10,000,054 ratings in half stars",
        url=f"{_GROUPLENS}/ml-10m.zip",
        md5="ce571fd55effeba0271552578f2648bd",
        events=10_000_054,
        layout="movielens",
    ),
    "netflix": Known(
        about="Netflix Prize: 480,189 users, 17,770 films, 100 million ratings",
        url="https://archive.org/download/nf_prize_dataset.tar/nf_prize_dataset.tar.gz",
        layout="netflix",
        recipe="netflix",
    ),
    "amazon-books": Known(
        about="Amazon reviews of 2014, books: 22.5 million ratings",
        url=f"{_SNAP}/ratings_Books.csv",
        layout="amazon",
        recipe="amazon-books",
    ),
    "amazon-cds": Known(
        about="Amazon reviews of 2014, CDs and vinyl: 3.7 million ratings",
        url=f"{_SNAP}/ratings_CDs_and_Vinyl.csv",
        layout="amazon",
        recipe="amazon-cds",
    ),
    "foursquare": Known(
        about="Foursquare, the world, Apr 2012 to Jan 2014: 22.8 million check-ins",
        url=_YANG,
        by_hand=True,
        layout="foursquare",
        recipe="foursquare",
    ),
    "foursquare-nyc": Known(
        about="Foursquare, New York, Apr 2012 to Feb 2013: 227,428 check-ins",
        url=_TSMC,
        layout="foursquare-nyc",
    ),
    "foursquare-tky": Known(
        about="Foursquare, Tokyo, Apr 2012 to Feb 2013: 573,703 check-ins",
        url=_TSMC,
        layout="foursquare-tky",
    ),
}
SYNTHETIC = {
    "synthetic": "a made stream with ratings: durable tastes, drifting moods, bursts, repeats",
    "synthetic-implicit": "the same without ratings",
    "planted": "a made world whose best sketch is known",
}


def cache() -> Path:
    """Where downloads and prepared copies are kept: $DIPS_CACHE, or ~/.cache/dips."""
    given = os.environ.get("DIPS_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "dips"


def open_data(
    spec: str,
    *,
    layout: str | None = None,
    columns: Columns | None = None,
    dials: Mapping[str, Any] | None = None,
) -> Interactions:
    """Open a catalogue name, a prepared file, a table, or a source in an official layout."""
    data = read_data(spec, layout=layout, columns=columns, dials=dials)
    if data.users < 2:
        raise DataError(
            f"{spec}: there is a single user, '{data.user_id(0)}', and a policy is learned from "
            "many; check the column of users (--user-col)"
        )
    return data


def read_data(
    spec: str,
    *,
    layout: str | None = None,
    columns: Columns | None = None,
    dials: Mapping[str, Any] | None = None,
) -> Interactions:
    """Like `open_data`, but one user is enough."""
    data = _found(spec, layout, columns, dials)
    for name in columns.side if columns is not None else ():
        if name not in data.side:
            known = ", ".join(data.side) or "no further columns"
            raise DataError(
                f"{spec}: there is no column '{name}' beside user, item, rating and time; it has "
                f"{known} (a table has what is in its header, a prepared file what "
                "'dips data prepare --side' named)"
            )
    return data


def _found(
    spec: str,
    layout: str | None,
    columns: Columns | None,
    dials: Mapping[str, Any] | None,
) -> Interactions:
    """Whatever the name or the path stands for."""
    if spec in SYNTHETIC:
        return _make(spec, dials or {})
    if dials:
        raise ConfigError(f"{', '.join(dials)}: these go with {', '.join(SYNTHETIC)} only")
    if spec in CATALOG:  # a directory of that name is meant by ./NAME
        return _named(_open_known(spec), spec)
    path = Path(spec)
    if path.suffix == prepared.SUFFIX:
        return prepared.open_prepared(path)
    if not path.exists():
        names = ", ".join([*CATALOG, *SYNTHETIC])
        raise DataError(f"{spec}: neither a file or directory nor a known name ({names})")
    return _named(_read(path, layout, columns), path.name.partition(".")[0])


def fetch(
    name: str, *, origin: Path | None = None, progress: download.Progress | None = None
) -> Path:
    """Download a dataset, or take the file given, and prepare it in the cache; returns where."""
    known = CATALOG.get(name)
    if known is None:
        raise DataError(f"there is nothing to fetch for '{name}'; there are {', '.join(CATALOG)}")
    if origin is None and known.by_hand:
        raise DataError(
            f"{name} has to be downloaded by hand: get it from {known.url} and pass it with "
            f"'dips data fetch {name} --from FILE'"
        )
    source = origin or _downloaded(known)
    if origin is None and not source.exists():
        download.fetch(known.url, source, md5=known.md5, progress=progress)
    try:
        data = _prepare(known, source)
    except DataError:
        if origin is None:
            source.unlink()  # or every later call would stumble over the same bad file
        raise
    _refuse_another(name, len(data), source)
    prepared.write(_named(data, name), prepared_copy(name))
    return prepared_copy(name)


def _refuse_another(name: str, events: int, source: Path) -> None:
    """A file of one dataset must not be kept under the name of another."""
    for other, known in CATALOG.items():
        if other != name and known.events == events:
            raise DataError(
                f"{source} is {other}, not {name}: 'dips data fetch {other} --from FILE'"
            )


def prepared_copy(name: str) -> Path:
    """Where the prepared copy of a known dataset lies, if it was fetched."""
    return cache() / f"{name}{prepared.SUFFIX}"


def _downloaded(known: Known) -> Path:
    return cache() / "downloads" / PurePosixPath(known.url).name


def _places(name: str) -> dict[str, Path]:
    """Where a known dataset may lie, the best place first."""
    places = {"prepared": prepared_copy(name)}
    shared = os.environ.get("DIPS_DATA")
    if shared:
        places["table"] = Path(shared) / f"{name}.parquet"
        places["raw"] = Path(shared) / "raw" / f"{name}.zip"
    return {**places, "download": _downloaded(CATALOG[name])}


def is_here(name: str) -> bool:
    """Whether a known dataset opens without a download."""
    return any(path.exists() for path in _places(name).values())


def _open_known(name: str) -> Interactions:
    known = CATALOG[name]
    for kind, path in _places(name).items():
        if not path.exists():
            continue
        if kind == "prepared":
            return prepared.open_prepared(path)
        return _read(path, "table", None) if kind == "table" else _prepare(known, path)
    raise DataError(
        f"{name} is not here yet; get it with 'dips data fetch {name}', or without a network from "
        f"{known.url} and then 'dips data fetch {name} --from FILE'"
    )


def _prepare(known: Known, path: Path) -> Interactions:
    return prepare(_read(path, known.layout, None), recipe=known.recipe)


def _read(path: Path, layout: str | None, columns: Columns | None) -> Interactions:
    with open_source(path) as source:
        data = read_source(source, layout, columns)
    return replace(data, about={**data.about, "source": str(path)})


def _named(data: Interactions, name: str) -> Interactions:
    return replace(data, about={**data.about, "name": name})


def _make(name: str, dials: Mapping[str, Any]) -> Interactions:
    from dips.data import synthetic

    if name == "planted":
        strange = dials.keys() - {"users", "seed"}
        if strange:
            raise ConfigError(f"{', '.join(sorted(strange))}: planted has only users and seed")
        return _named(synthetic.planted(**dials), name)
    if name == "synthetic-implicit":
        dials = {"implicit": True, **dials}
    return _named(synthetic.stream(**dials), name)
