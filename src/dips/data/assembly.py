"""From rows with original ids to Interactions. Knows nothing of files; the only judge of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from dips.data.columns import SIDE
from dips.data.interactions import Categories, Int32, Interactions, Side, Strings, from_arrays
from dips.errors import DataError


@dataclass(frozen=True)
class Rows:
    """Columns `user`, `item`, perhaps `rating`, `time`, further ones; where each row came from."""

    frame: pl.DataFrame
    where: Callable[[int], str]
    """File and line of a row."""


@dataclass(frozen=True)
class ItemFacts:
    """Titles, categories and, where the rows count items, original ids: by the id of the rows."""

    titles: Mapping[str, str] | None = None
    categories: Mapping[str, Sequence[str]] | None = None
    originals: Mapping[str, str] | None = None

    def titles_of(self, ids: Strings) -> Strings | None:
        """One title per item, empty where there is none."""
        if not self.titles:
            return None
        return Strings.of(self.titles.get(name, "") for name in ids)

    def categories_of(self, ids: Strings) -> Categories | None:
        """The categories of every item, none where nothing is known."""
        if not self.categories:
            return None
        return Categories.of([self.categories.get(name, ()) for name in ids])

    def originals_of(self, ids: Strings) -> Strings:
        """The source's own id of every item."""
        if not self.originals:
            return ids
        return Strings.of(self.originals.get(name, name) for name in ids)


NO_FACTS = ItemFacts()


def assemble(
    rows: Rows,
    *,
    scale: tuple[float, float] | None = None,
    facts: ItemFacts = NO_FACTS,
    about: dict[str, Any] | None = None,
) -> Interactions:
    """Check the values, number users and items, and sort; ratings must lie within the scale."""
    frame = rows.frame
    if frame.height == 0:
        raise DataError(f"{rows.where(0)}: there are no interactions in this file")
    if "rating" in frame.columns:
        _check_ratings(rows, scale)
    if "time" in frame.columns and frame["time"].dtype.is_float():
        _refuse(rows, "time", ~frame["time"].is_finite(), "is not a time in seconds")
    users, user_ids = number(rows, "user")
    items, item_ids = number(rows, "item")
    return from_arrays(
        users,
        items,
        frame["rating"].to_numpy() if "rating" in frame.columns else None,
        frame["time"].cast(pl.Int64).to_numpy() if "time" in frame.columns else None,
        user_ids=user_ids,
        item_ids=facts.originals_of(item_ids),
        titles=facts.titles_of(item_ids),
        categories=facts.categories_of(item_ids),
        side={
            name.removeprefix(SIDE): _side(rows, name)
            for name in frame.columns
            if name.startswith(SIDE)
        },
        about=about,
    )


def number(rows: Rows, field: str) -> tuple[Int32, Strings]:
    """Codes and vocabulary of an id column: in order of number where all ids are whole numbers."""
    ids = rows.frame[field]
    if ids.dtype.is_integer():
        _refuse(rows, field, ids < 0, "is negative; ids count from 0")
        codes, present = number_integers(ids.to_numpy())
        return codes, Strings.of(map(str, present.tolist()))
    ids = ids.cast(pl.String)
    names = ids.unique()
    if names.str.contains(r"^-?(0|[1-9][0-9]{0,17})$").all():
        _refuse(rows, field, ids.str.starts_with("-"), "is negative; ids count from 0")
        names = names.cast(pl.Int64).sort().cast(pl.String)
    else:
        names = names.sort()
    codes = ids.cast(pl.Enum(names)).to_physical().cast(pl.Int32).to_numpy()
    return codes, Strings.of(names.to_list())


def number_integers(ids: npt.NDArray[Any]) -> tuple[Int32, npt.NDArray[Any]]:
    """Codes of whole numbers and the numbers themselves, sorted; linear where they are dense."""
    top = int(ids.max()) + 1
    if top > 8 * len(ids) + 1_000_000:
        present, codes = np.unique(ids, return_inverse=True)
        return codes.astype(np.int32), present
    seen = np.zeros(top, np.bool_)
    seen[ids] = True
    ranks = np.cumsum(seen, dtype=np.int32) - 1
    return ranks[ids], np.flatnonzero(seen)


def _side(rows: Rows, field: str) -> Side:
    """A further column: numbers stay numbers, everything else is names."""
    column = rows.frame[field]
    if column.dtype.is_numeric() or column.dtype == pl.Boolean:
        numbers = column.cast(pl.Float64)
        _refuse(rows, field, ~numbers.is_finite(), "is not a number")
        return Side(numbers.cast(pl.Float32).to_numpy())
    texts = column.cast(pl.String)
    names = texts.unique().sort()
    codes = texts.cast(pl.Enum(names)).to_physical().cast(pl.Int32).to_numpy()
    return Side(codes, Strings.of(names.to_list()))


def _check_ratings(rows: Rows, scale: tuple[float, float] | None) -> None:
    ratings = rows.frame["rating"]
    _refuse(rows, "rating", ~ratings.is_finite(), "is not a number")
    if scale is not None:
        low, high = scale
        outside = (ratings < low) | (ratings > high)
        _refuse(rows, "rating", outside, f"is outside the scale from {low:g} to {high:g}")


def _refuse(rows: Rows, field: str, bad: pl.Series, why: str) -> None:
    """Raise for the first bad row, if there is one."""
    row = bad.arg_max()
    if row is not None and bad[row]:
        value = rows.frame[field][row]
        raise DataError(f"{rows.where(row)}: {field} {value!r} {why}; correct or remove this row")
