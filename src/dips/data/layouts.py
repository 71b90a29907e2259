"""Which reader understands a source. Imports a reader, and with it polars, only to use it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from dips.data.columns import Columns
from dips.data.interactions import Interactions
from dips.data.source import Source
from dips.errors import ConfigError, DataError

_AMAZON_REVIEW = re.compile(
    rb'{.*"reviewerID"|(A[0-9A-Z]+,)?(B[0-9A-Z]{9}|[0-9]{9}[0-9X]),(A[0-9A-Z]+,)?[0-9.]+,[0-9]+\r?\n'
)


@dataclass(frozen=True)
class Layout:
    """How one family of files is read, and by which file names it is known."""

    module: str
    known_by: tuple[str, ...] = ()
    arguments: tuple[tuple[str, str], ...] = ()
    takes_columns: bool = False
    looks_like: re.Pattern[bytes] | None = None
    """What the first line must look like, where the names alone do not tell."""

    def fits(self, source: Source, name: str) -> bool:
        """Whether this member could be read."""
        if self.looks_like is None:
            return True
        return self.looks_like.match(next(source.blocks(name, 1 << 12))) is not None

    def read(self, source: Source, columns: Columns) -> Interactions:
        """Call the reader."""
        reader: Callable[..., Interactions] = import_module(f"dips.data.{self.module}").read
        arguments: dict[str, Any] = dict(self.arguments)
        if self.takes_columns:
            arguments["columns"] = columns
        elif columns != Columns():
            raise ConfigError(
                f"column names go with a table; the layout '{self.module}' has its own: "
                "leave them out or say --layout table"
            )
        return reader(source, **arguments)


LAYOUTS = {
    "movielens": Layout("movielens", ("u.data", "ratings.dat")),
    "netflix": Layout("netflix", ("combined_data_*.txt", "mv_*.txt")),
    "foursquare": Layout(
        "foursquare",
        (
            "dataset_WWW_Checkins_anonymized.txt",
            "dataset_TIST2015_Checkins.txt",
            "dataset_TSMC2014_*.txt",
        ),
    ),
    "foursquare-nyc": Layout("foursquare", arguments=(("city", "NYC"),)),
    "foursquare-tky": Layout("foursquare", arguments=(("city", "TKY"),)),
    "recbole": Layout("recbole", ("*.inter",), takes_columns=True),
    "amazon": Layout(
        "amazon", ("*.json", "*.json.gz", "*.csv", "*.csv.gz"), looks_like=_AMAZON_REVIEW
    ),
    "amazon-2014": Layout("amazon", arguments=(("order", "user,item"),)),
    "amazon-2018": Layout("amazon", arguments=(("order", "item,user"),)),
    "table": Layout(
        "table", ("*.parquet", "*.csv", "*.tsv", "*.csv.gz", "*.tsv.gz"), takes_columns=True
    ),
}


def read_source(
    source: Source, layout: str | None = None, columns: Columns | None = None
) -> Interactions:
    """Read a source in the layout that is named, or else the first that knows its files."""
    if layout is not None and layout not in LAYOUTS:
        raise ConfigError(f"there is no layout '{layout}'; there are {', '.join(LAYOUTS)}")
    if layout is None:
        layout = guess(source, columns or Columns())
    return LAYOUTS[layout].read(source, columns or Columns())


def guess(source: Source, columns: Columns) -> str:
    """The layout whose file names occur; where columns are named, only one that takes them."""
    for name, layout in LAYOUTS.items():
        if columns != Columns() and not layout.takes_columns:
            continue
        found = source.find(*layout.known_by)
        if source.given is not None:
            found = [member for member in found if member == source.given]
        if any(layout.fits(source, member) for member in found):
            return name
    held = ", ".join(([source.given] if source.given else source.names)[:5])
    raise DataError(
        f"{source.path}: no layout is known by these files ({held}); "
        f"name one with --layout ({', '.join(LAYOUTS)})"
    )
