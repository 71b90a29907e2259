"""Layouts of datasets: how files are recognised, and which reader reads them.

A reader module, and with it polars, is imported when it is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from dips.data.interactions import Interactions
from dips.data.readers.columns import ColumnNames
from dips.data.readers.source import Source
from dips.errors import ConfigError, DataError, choose_from

_AMAZON_REVIEW = re.compile(
    rb'{.*"reviewerID"|(A[0-9A-Z]+,)?(B[0-9A-Z]{9}|[0-9]{9}[0-9X]),(A[0-9A-Z]+,)?[0-9.]+,[0-9]+\r?\n'
)


@dataclass(frozen=True)
class Layout:
    """A file layout: the module that reads it, and how its files are recognised."""

    module: str
    """Module of `dips.data.readers` with a function `read(source) -> Interactions`."""
    known_by: tuple[str, ...] = ()
    """Shell patterns of its file names; a layout without them has to be named by the user."""
    arguments: tuple[tuple[str, str], ...] = ()
    """Further arguments of `read`."""
    takes_columns: bool = False
    """Whether `read` takes `columns`, the names of the columns."""
    looks_like: re.Pattern[bytes] | None = None
    """Pattern of the first line, if file names alone are ambiguous."""

    def fits(self, source: Source, name: str) -> bool:
        """Return whether the first line of a file matches `looks_like`."""
        if self.looks_like is None:
            return True
        return self.looks_like.match(next(source.blocks(name, 1 << 12))) is not None

    def read(self, source: Source, columns: ColumnNames) -> Interactions:
        """Read a source with the module of this layout.

        Raises:
            ConfigError: If column names are given and this layout takes none.
            DataError: If the files cannot be read.
        """
        reader: Callable[..., Interactions] = import_module(f"dips.data.readers.{self.module}").read
        arguments: dict[str, Any] = dict(self.arguments)
        if self.takes_columns:
            arguments["columns"] = columns
        elif columns != ColumnNames():
            raise ConfigError(
                f"column names go with a table; the layout '{self.module}' has its own: "
                "leave them out or use --layout table"
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
    source: Source, layout: str | None = None, columns: ColumnNames | None = None
) -> Interactions:
    """Read a source.

    Args:
        source: Directory, file or archive.
        layout: A name of `LAYOUTS`; by default the first layout that recognises the files.
        columns: Names of the columns of a table.

    Raises:
        ConfigError: If the layout does not exist or takes no column names.
        DataError: If no layout recognises the files, or they cannot be read.
    """
    if layout is not None and layout not in LAYOUTS:
        raise ConfigError(f"unknown layout '{layout}': {choose_from(layout, LAYOUTS)}")
    if layout is None:
        layout = recognise(source, columns or ColumnNames())
    return LAYOUTS[layout].read(source, columns or ColumnNames())


def recognise(source: Source, columns: ColumnNames) -> str:
    """Return the first layout that recognises the files; with column names, one that takes them.

    Raises:
        DataError: If there is none.
    """
    for name, layout in LAYOUTS.items():
        if columns != ColumnNames() and not layout.takes_columns:
            continue
        found = source.find(*layout.known_by)
        if source.given is not None:
            found = [member for member in found if member == source.given]
        if any(layout.fits(source, member) for member in found):
            return name
    if source.given is not None and source.given.endswith((".xlsx", ".xls", ".ods")):
        raise DataError(f"{source.path}: a spreadsheet is not read; save it as CSV in UTF-8")
    held = ", ".join(([source.given] if source.given else source.names)[:5])
    raise DataError(
        f"{source.path}: no layout has these files ({held or 'nothing'}); the name of a table ends "
        "in .csv, .tsv or .parquet; another name needs --layout of dips data prepare "
        f"({', '.join(LAYOUTS)})"
    )
