"""Turn raw rows with original ids into `Interactions`. All values are checked here.

Knows nothing about files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from dips.data.interactions import (
    Categories,
    EventColumn,
    Int32,
    Interactions,
    Strings,
    from_arrays,
)
from dips.data.read_summary import ReadSummary
from dips.data.readers.columns import SIDE
from dips.errors import DataError


@dataclass(frozen=True)
class RawRows:
    """Rows as a reader found them, with original ids."""

    frame: pl.DataFrame
    """The columns `user`, `item`, optionally `rating`, `time` and event columns (prefix `SIDE`)."""
    where: Callable[[int], str]
    """Return file and line of a row, for error messages."""
    summary: ReadSummary | None = None
    """Which columns of a table they come from."""


@dataclass(frozen=True)
class ItemMetadata:
    """Titles, categories and original ids of items, by the item id of the rows."""

    titles: Mapping[str, str] | None = None
    categories: Mapping[str, Sequence[str]] | None = None
    original_ids: Mapping[str, str] | None = None
    """The ids of the source, if the rows have item numbers instead."""

    def titles_of(self, ids: Strings) -> Strings | None:
        """Return one title per item, empty if it is unknown; None without any titles."""
        if not self.titles:
            return None
        return Strings.of(self.titles.get(name, "") for name in ids)

    def categories_of(self, ids: Strings) -> Categories | None:
        """Return the categories of every item; None without any categories."""
        if not self.categories:
            return None
        return Categories.of([self.categories.get(name, ()) for name in ids])

    def original_ids_of(self, ids: Strings) -> Strings:
        """Return the source's id of every item."""
        if not self.original_ids:
            return ids
        return Strings.of(self.original_ids.get(name, name) for name in ids)


NO_METADATA = ItemMetadata()


def assemble(
    rows: RawRows,
    *,
    scale: tuple[float, float] | None = None,
    metadata: ItemMetadata = NO_METADATA,
    about: dict[str, Any] | None = None,
) -> Interactions:
    """Check the values of raw rows, encode users and items as integers, and sort the events.

    Args:
        rows: The rows of a reader.
        scale: Smallest and largest allowed rating.
        metadata: Titles, categories and original ids of items.
        about: Facts about the dataset, for reports.

    Raises:
        DataError: If there are no rows, or a rating, time or id is invalid; names file and line.
    """
    frame = rows.frame
    if frame.height == 0:
        raise DataError(f"{rows.where(0)}: there are no interactions in this file")
    if "rating" in frame.columns:
        _check_ratings(rows, scale)
    times = None
    if "time" in frame.columns:
        times = frame["time"].cast(pl.Int64, strict=False)
        refuse(rows, "time", times.is_null(), "is not a time in seconds")
    users, user_ids = encode_ids(rows, "user")
    items, item_ids = encode_ids(rows, "item")
    data = from_arrays(
        users,
        items,
        frame["rating"].to_numpy() if "rating" in frame.columns else None,
        None if times is None else times.to_numpy(),
        user_ids=user_ids,
        item_ids=metadata.original_ids_of(item_ids),
        titles=metadata.titles_of(item_ids),
        categories=metadata.categories_of(item_ids),
        side={
            name.removeprefix(SIDE): _event_column(rows, name)
            for name in frame.columns
            if name.startswith(SIDE)
        },
        about=about,
    )
    return replace(data, read_summary=rows.summary)


def encode_ids(rows: RawRows, field: str) -> tuple[Int32, Strings]:
    """Return codes and vocabulary of an id column; integer ids are sorted by value."""
    ids = rows.frame[field]
    if ids.dtype.is_integer():
        refuse(rows, field, ids < 0, "is negative; ids count from 0")
        codes, present = encode_integers(ids.to_numpy())
        return codes, Strings.of(map(str, present.tolist()))
    if ids.dtype.is_float():
        refuse(rows, field, ids.is_nan(), "is missing")
    ids = ids.cast(pl.String)
    names = ids.unique()
    if names.str.contains(r"^-?(0|[1-9][0-9]{0,17})$").all():
        refuse(rows, field, ids.str.starts_with("-"), "is negative; ids count from 0")
        names = names.cast(pl.Int64).sort().cast(pl.String)
    else:
        names = names.sort()
    codes = ids.cast(pl.Enum(names)).to_physical().cast(pl.Int32).to_numpy()
    return codes, Strings.of(names.to_list())


def encode_integers(ids: npt.NDArray[Any]) -> tuple[Int32, npt.NDArray[Any]]:
    """Return codes of integer ids and the sorted distinct ids; linear time for dense ids."""
    top = int(ids.max()) + 1
    if top > 8 * len(ids) + 1_000_000:
        present, codes = np.unique(ids, return_inverse=True)
        return codes.astype(np.int32), present
    seen = np.zeros(top, np.bool_)
    seen[ids] = True
    ranks = np.cumsum(seen, dtype=np.int32) - 1
    return ranks[ids], np.flatnonzero(seen)


def _event_column(rows: RawRows, field: str) -> EventColumn:
    """Return an event column: numbers as numbers, any other type as codes of names."""
    column = rows.frame[field]
    if column.dtype.is_numeric() or column.dtype == pl.Boolean:
        numbers = column.cast(pl.Float64)
        refuse(rows, field, ~numbers.is_finite(), "is not a number")
        return EventColumn(numbers.cast(pl.Float32).to_numpy())
    texts = column.cast(pl.String)
    names = texts.unique().sort()
    codes = texts.cast(pl.Enum(names)).to_physical().cast(pl.Int32).to_numpy()
    return EventColumn(codes, Strings.of(names.to_list()))


def _check_ratings(rows: RawRows, scale: tuple[float, float] | None) -> None:
    ratings = rows.frame["rating"]
    refuse(rows, "rating", ~ratings.is_finite(), "is not a number")
    if ratings.dtype == pl.Float64:
        refuse(rows, "rating", ratings.abs() > np.finfo(np.float32).max, "is too large")
    if scale is not None:
        low, high = scale
        outside = (ratings < low) | (ratings > high)
        refuse(rows, "rating", outside, f"is outside the scale from {low:g} to {high:g}")


def refuse(rows: RawRows, field: str, bad: pl.Series, why: str) -> None:
    """Raise `DataError` for the first row that is marked as bad."""
    row = bad.arg_max()
    if row is not None and bad[row]:
        value = rows.frame[field][row]
        raise DataError(f"{rows.where(row)}: {field} {value!r} {why}; correct or remove this row")
