"""Read a predefined split: train, valid and test from three sources. Knows no file formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dips.data.catalog import read_data
from dips.data.filtering import compact
from dips.data.interactions import Categories, EventColumn, Int32, Interactions, Strings
from dips.data.splitting import Parts
from dips.errors import DataError


def open_predefined_split(
    train: str, valid: str, test: str, *, read: Callable[[str], Interactions] = read_data
) -> Parts:
    """Read three sources as the three parts of one dataset with shared vocabularies.

    A user who occurs in two sources has two separate histories, one in each part.

    Args:
        train: Path or catalogue name of the training data.
        valid: Path or catalogue name of the validation data.
        test: Path or catalogue name of the test data.
        read: Opens one source.

    Raises:
        DataError: If a source cannot be read, or the three have different columns.
    """
    return join([compact(read(spec)) for spec in (train, valid, test)])


def join(tables: list[Interactions]) -> Parts:
    """Concatenate three datasets as the parts of one, each with its own users.

    Raises:
        DataError: If only some of them have ratings, times or a side column.
    """
    for field in ("rating", "time"):
        having = [table.name for table in tables if getattr(table, field) is not None]
        if having and len(having) < len(tables):
            raise DataError(
                f"only {' and '.join(having)} has a {field}; give it in all three files, or leave "
                f"it out of all with --{field}-col none"
            )
    users, user_maps = _shared([table.user_ids for table in tables])
    items, item_maps = _shared([table.item_ids for table in tables])
    first = tables[0]
    merged = replace(
        first,
        item=np.concatenate([codes[t.item] for t, codes in zip(tables, item_maps, strict=True)]),
        rating=_joined(tables, "rating"),
        time=_joined(tables, "time"),
        user_ids=users,
        item_ids=items,
        titles=_titles(tables, item_maps, len(items)),
        categories=_categories(tables, item_maps, len(items)),
        side={name: _side(tables, name) for name in first.side},
        about={key: value for key, value in first.about.items() if key != "rating_range"},
    )
    if merged.rating is not None:
        low, high = float(merged.rating.min()), float(merged.rating.max())
        merged = replace(merged, about={**merged.about, "rating_range": (low, high)})
    shifts = np.cumsum([0, *(len(table.item) for table in tables[:-1])])
    parts = [
        replace(
            merged,
            starts=table.starts + shift,
            lengths=table.lengths,
            warmup=table.warmup,
            user_rows=codes[table.user_rows].astype(np.int64),
        )
        for table, shift, codes in zip(tables, shifts, user_maps, strict=True)
    ]
    return parts[0], parts[1], parts[2]


def _shared(vocabularies: list[Strings]) -> tuple[Strings, list[Int32]]:
    """Return one vocabulary in order of first occurrence, and the new code of each old one."""
    code: dict[str, int] = {}
    maps = [
        np.array([code.setdefault(name, len(code)) for name in vocabulary], np.int32)
        for vocabulary in vocabularies
    ]
    return Strings.of(code), maps


def _joined(tables: list[Interactions], field: str) -> npt.NDArray[Any] | None:
    columns = [getattr(table, field) for table in tables]
    return None if columns[0] is None else np.concatenate(columns)


def _side(tables: list[Interactions], name: str) -> EventColumn:
    """Concatenate an event column of all tables; names get one vocabulary."""
    for table in tables:
        if name not in table.side:
            raise DataError(f"{table.name} has no column '{name}', and {tables[0].name} has it")
    columns = [table.side[name] for table in tables]
    vocabularies = [column.names for column in columns if column.names is not None]
    if not vocabularies:
        return EventColumn(np.concatenate([column.values for column in columns]))
    if len(vocabularies) < len(columns):
        raise DataError(f"column '{name}' holds numbers in one file and names in another")
    names, maps = _shared(vocabularies)
    codes = [codes[column.values] for column, codes in zip(columns, maps, strict=True)]
    return EventColumn(np.concatenate(codes), names)


def _titles(tables: list[Interactions], maps: list[Int32], items: int) -> Strings | None:
    titles = [""] * items
    for table, codes in zip(tables, maps, strict=True):
        for code, title in zip(codes.tolist(), table.titles or (), strict=False):
            titles[code] = titles[code] or title
    return Strings.of(titles) if any(titles) else None


def _categories(tables: list[Interactions], maps: list[Int32], items: int) -> Categories | None:
    lists: list[list[str]] = [[] for _ in range(items)]
    for table, codes in zip(tables, maps, strict=True):
        if table.categories is not None:
            for item, code in enumerate(codes.tolist()):
                lists[code] = lists[code] or table.categories[item]
    return Categories.of(lists) if any(lists) else None
