"""Datasets by name, and where they are looked for. The readers do the reading."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from dips.data import download, prepared
from dips.data.filtering import prepare
from dips.data.interactions import Interactions
from dips.data.readers.columns import ColumnNames
from dips.data.readers.layouts import read_source
from dips.data.readers.source import open_source
from dips.errors import ConfigError, DataError, DataWarning, choose_from, did_you_mean

_LOG = logging.getLogger("dips")
_GROUPLENS = "https://files.grouplens.org/datasets/movielens"
_SNAP = "https://snap.stanford.edu/data/amazon/productGraph/categoryFiles"
_YANG = "https://sites.google.com/site/yangdingqi/home/foursquare-dataset"
_TSMC = "http://www-public.tem-tsp.eu/~zhang_da/pub/dataset_tsmc2014.zip"


@dataclass(frozen=True, kw_only=True)
class KnownDataset:
    """A public dataset of the catalogue."""

    about: str
    """One line for `dips data list`."""
    url: str
    """The file, or with `by_hand` the page to get it from."""
    layout: str
    recipe: str = "as-is"
    """Name of the filter recipe (`dips.data.filtering`) for the raw files.

    NAME.parquet in $DIPS_DATA is read as it is: the recipe is not applied, so filter it before.
    """
    md5: str | None = None
    by_hand: bool = False
    """Whether the user has to download it in a browser."""
    events: int | None = None
    """Number of events of the raw files; used to detect the file of another dataset."""


CATALOG: dict[str, KnownDataset] = {
    "ml-100k": KnownDataset(
        about="MovieLens 100K: 943 users, 1,682 films, 100,000 ratings",
        url=f"{_GROUPLENS}/ml-100k.zip",
        md5="0e33842e24a9c977be4e0107933c0723",
        events=100_000,
        layout="movielens",
    ),
    "ml-1m": KnownDataset(
        about="MovieLens 1M: 6,040 users, 3,706 films, 1,000,209 ratings",
        url=f"{_GROUPLENS}/ml-1m.zip",
        md5="c4d9eecfca2ab87c1945afe126590906",
        events=1_000_209,
        layout="movielens",
    ),
    "ml-10m": KnownDataset(
        about="MovieLens 10M: 69,878 users, 10,677 films, 10,000,054 ratings in half stars",
        url=f"{_GROUPLENS}/ml-10m.zip",
        md5="ce571fd55effeba0271552578f2648bd",
        events=10_000_054,
        layout="movielens",
    ),
    "netflix": KnownDataset(
        about="Netflix Prize: 480,189 users, 17,770 films, 100 million ratings",
        url="https://archive.org/download/nf_prize_dataset.tar/nf_prize_dataset.tar.gz",
        layout="netflix",
        recipe="netflix",
    ),
    "amazon-books": KnownDataset(
        about="Amazon reviews of 2014, books: 22.5 million ratings",
        url=f"{_SNAP}/ratings_Books.csv",
        layout="amazon",
        recipe="amazon-books",
    ),
    "amazon-cds": KnownDataset(
        about="Amazon reviews of 2014, CDs and vinyl: 3.7 million ratings",
        url=f"{_SNAP}/ratings_CDs_and_Vinyl.csv",
        layout="amazon",
        recipe="amazon-cds",
    ),
    "foursquare": KnownDataset(
        about="Foursquare, the world, Apr 2012 to Jan 2014: 22.8 million check-ins",
        url=_YANG,
        by_hand=True,
        layout="foursquare",
        recipe="foursquare",
    ),
    "foursquare-nyc": KnownDataset(
        about="Foursquare, New York, Apr 2012 to Feb 2013: 227,428 check-ins",
        url=_TSMC,
        layout="foursquare-nyc",
    ),
    "foursquare-tky": KnownDataset(
        about="Foursquare, Tokyo, Apr 2012 to Feb 2013: 573,703 check-ins",
        url=_TSMC,
        layout="foursquare-tky",
    ),
}
SYNTHETIC = {
    "synthetic": "a synthetic stream with ratings: lasting preferences, interest drift, bursts",
    "synthetic-implicit": "a synthetic stream without ratings, with repeat consumption",
    "planted": "a synthetic world whose best sketch is known",
}


def cache() -> Path:
    """Return the directory of downloads and prepared copies.

    It is $DIPS_CACHE, else `dips` in the user's cache directory ($XDG_CACHE_HOME or ~/.cache).
    """
    if given := os.environ.get("DIPS_CACHE"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dips"


def open_data(
    spec: str,
    *,
    layout: str | None = None,
    columns: ColumnNames | None = None,
    options: Mapping[str, Any] | None = None,
) -> Interactions:
    """Open a dataset with at least two users.

    Args:
        spec: Catalogue name, prepared file, table, or a directory or archive in official layout.
        layout: Name of the layout; by default it is recognised from the files.
        columns: Names of the columns of a table; by default they are guessed.
        options: Arguments of a synthetic dataset, such as `users` and `seed`.

    Raises:
        DataError: If nothing is found, the files cannot be read, or there is one user only.
        ConfigError: If the layout or an option does not exist.

    Warns:
        DataWarning: If all ratings are equal; see also `read_data`.
    """
    data = read_data(spec, layout=layout, columns=columns, options=options)
    if data.users < 2:
        raise DataError(
            f"{spec}: there is a single user, '{data.user_id(0)}', and a policy is learned from "
            "many; check the column of users (--user-col)"
        )
    if data.explicit and len(set(data.rating_range())) == 1:
        warnings.warn(
            f"{data.name}: all ratings are {data.rating_range()[0]:g}, so there is nothing to "
            "learn from them; predict items with --task implicit",
            DataWarning,
            stacklevel=3,
        )
    return data


def read_data(
    spec: str,
    *,
    layout: str | None = None,
    columns: ColumnNames | None = None,
    options: Mapping[str, Any] | None = None,
) -> Interactions:
    """Open a dataset with any number of users, such as one part of a predefined split.

    Args:
        spec: Catalogue name, prepared file, table, or a directory or archive in official layout.
        layout: Name of the layout; by default it is recognised from the files.
        columns: Names of the columns of a table; by default they are guessed.
        options: Arguments of a synthetic dataset, such as `users` and `seed`.

    Returns:
        The dataset. `read_summary` names the columns of a table; the logger `dips` gets it, too.

    Raises:
        DataError: If nothing is found, the files cannot be read, or a side column is missing.
        ConfigError: If the layout or an option does not exist.

    Warns:
        DataWarning: If a column that looks useful is not read, or values look wrong.
    """
    data = _open_spec(spec, layout, columns, options)
    if data.read_summary is not None:
        _LOG.info("%s", data.read_summary)
        for sentence in data.read_summary.warnings:
            warnings.warn(sentence, DataWarning, stacklevel=4)
    for name in columns.side if columns is not None else ():
        if name not in data.side:
            known = ", ".join(data.side) or "no further columns"
            raise DataError(
                f"{spec}: there is no column '{name}' beside user, item, rating and time; it has "
                f"{known} (a table has what is in its header, a prepared file what "
                "'dips data prepare --side' named)"
            )
    return data


def _open_spec(
    spec: str,
    layout: str | None,
    columns: ColumnNames | None,
    options: Mapping[str, Any] | None,
) -> Interactions:
    """Return the dataset of a catalogue name or a path."""
    named = spec in SYNTHETIC or spec in CATALOG or spec.endswith(prepared.SUFFIX)
    if named and (layout is not None or (columns and replace(columns, side=()) != ColumnNames())):
        raise ConfigError(
            f"{spec}: its layout and columns are known; leave --layout and names of columns out"
        )
    if spec in SYNTHETIC:
        return _make(spec, options or {})
    if options:
        raise ConfigError(
            f"{', '.join(options)}: these options exist for {', '.join(SYNTHETIC)} only"
        )
    if spec in CATALOG:  # a directory of that name is meant by ./NAME
        return replace(_named(_open_known(spec), spec), read_summary=None)
    path = Path(spec)
    if path.suffix == prepared.SUFFIX:
        return prepared.open_prepared(path)
    if not path.exists():
        names = [*CATALOG, *SYNTHETIC]
        beside = [file.name for file in path.parent.glob("*")]
        near = did_you_mean(path.name, [*names, *beside])
        raise DataError(
            f"{spec}: neither a file or directory nor a known name; {near}known are "
            f"{', '.join(names)}"
        )
    return _named(_read(path, layout, columns), path.name.partition(".")[0])


def fetch(
    name: str, *, origin: Path | None = None, progress: download.Progress | None = None
) -> Path:
    """Download a public dataset and write a prepared copy into the cache.

    Args:
        name: A name of `CATALOG`.
        origin: A file that was downloaded by hand; nothing is downloaded then.
        progress: Called with the bytes received and the total.

    Returns:
        The path of the prepared copy.

    Raises:
        DataError: If the name is unknown, or the file cannot be downloaded, read or written.
    """
    known = CATALOG.get(name)
    if known is None:
        raise DataError(f"there is nothing to fetch for '{name}': {choose_from(name, CATALOG)}")
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
            source.unlink()  # otherwise every later call would read the same bad file
        raise
    _refuse_another(name, len(data), source)
    prepared.write(_named(data, name), prepared_copy(name))
    return prepared_copy(name)


def _refuse_another(name: str, events: int, source: Path) -> None:
    """Raise `DataError` if the number of events is that of another dataset."""
    for other, known in CATALOG.items():
        if other != name and known.events == events:
            raise DataError(
                f"{source} is {other}, not {name}: 'dips data fetch {other} --from FILE'"
            )


def prepared_copy(name: str) -> Path:
    """Return the path of the prepared copy of a public dataset; it may not exist."""
    return cache() / f"{name}{prepared.SUFFIX}"


def _downloaded(known: KnownDataset) -> Path:
    return cache() / "downloads" / PurePosixPath(known.url).name


def _candidate_paths(name: str) -> dict[str, Path]:
    """Return the paths at which a public dataset is looked for, by kind, in order."""
    paths = {"prepared": prepared_copy(name)}
    shared = os.environ.get("DIPS_DATA")
    if shared:
        paths["table"] = Path(shared) / f"{name}.parquet"
        paths["raw"] = Path(shared) / "raw" / f"{name}.zip"
    return {**paths, "download": _downloaded(CATALOG[name])}


def searched_directories() -> list[Path]:
    """Return the directories in which public datasets are looked for, in order."""
    shared = os.environ.get("DIPS_DATA")
    return [cache(), *([Path(shared)] if shared else [])]


def is_available(name: str) -> bool:
    """Return whether a public dataset opens without a download."""
    return any(path.exists() for path in _candidate_paths(name).values())


def _open_known(name: str) -> Interactions:
    known = CATALOG[name]
    for kind, path in _candidate_paths(name).items():
        if not path.exists():
            continue
        if kind == "prepared":
            return prepared.open_prepared(path)
        return _read(path, "table", None) if kind == "table" else _prepare(known, path)
    raise DataError(
        f"{name} is not available yet; get it with 'dips data fetch {name}', or without a network "
        f"from {known.url} and then 'dips data fetch {name} --from FILE'"
    )


def _prepare(known: KnownDataset, path: Path) -> Interactions:
    return prepare(_read(path, known.layout, None), recipe=known.recipe)


def _read(path: Path, layout: str | None, columns: ColumnNames | None) -> Interactions:
    with open_source(path) as source:
        data = read_source(source, layout, columns)
    return replace(data, about={**data.about, "source": str(path)})


def _named(data: Interactions, name: str) -> Interactions:
    return replace(data, about={**data.about, "name": name})


def _make(name: str, options: Mapping[str, Any]) -> Interactions:
    from dips.data import synthetic

    if name == "planted":
        unknown = options.keys() - {"users", "seed"}
        if unknown:
            raise ConfigError(f"{', '.join(sorted(unknown))}: planted takes users and seed only")
        return _named(synthetic.planted(**options), name)
    if name == "synthetic-implicit":
        options = {"implicit": True, **options}
    return _named(synthetic.stream(**options), name)
