"""Read each user's list of last N items from other systems: JSON lines, Parquet, Redis dumps.

Knows nothing about sketches: it yields users and their interactions, oldest first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dips.errors import DataError

SUFFIXES = (".jsonl", ".parquet", ".json")


def read_item_lists(
    path: Path, *, newest_first: bool = False, prefix: str = ""
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield users and their item lists. The suffix of the file is its format:

    - `.jsonl`: one line per user, {"user": U, "items": [...]}
    - `.parquet`: columns `user` and `items`, optionally `ratings` and `times`
    - `.json`: one object from keys to lists, as Redis tools dump it

    An item is a string, an object with `item`, `rating` and `time`, or a pair of item and time.

    Args:
        path: The file.
        newest_first: Whether the lists start with the newest item.
        prefix: Removed from the keys, for instance `user:`.

    Yields:
        A user id, and per interaction a dict with `item` and optionally `rating` and `time`.

    Raises:
        DataError: If the file does not exist or does not have this format.
    """
    if path.suffix not in SUFFIXES:
        raise DataError(f"{path}: the name must end in {', '.join(SUFFIXES)}")
    if not path.exists():
        raise DataError(f"{path}: there is no such file")
    reader = {".jsonl": _lines, ".parquet": _parquet, ".json": _redis}[path.suffix]
    for where, user, items in reader(path):
        if not isinstance(items, Sequence) or isinstance(items, str):
            raise DataError(f"{where}: the items of a user are a list; correct or remove this row")
        entries = [_entry(item) for item in items]
        name = str(user).removeprefix(prefix)
        yield name, entries[::-1] if newest_first else entries


def _lines(path: Path) -> Iterator[tuple[str, Any, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
                yield f"{path}, line {number}", row["user"], row["items"]
            except (ValueError, KeyError, TypeError):
                raise DataError(
                    f'{path}, line {number}: not of the form {{"user": U, "items": [...]}}'
                ) from None


def _redis(path: Path) -> Iterator[tuple[str, Any, Any]]:
    try:
        table = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error})") from None
    if not isinstance(table, Mapping):
        raise DataError(f"{path}: expected one object from keys to lists")
    for key, items in table.items():
        yield f"{path}, key '{key}'", key, items


def _parquet(path: Path) -> Iterator[tuple[str, Any, Any]]:
    import polars

    try:
        frame = polars.read_parquet(path)
    except (OSError, polars.exceptions.PolarsError) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({error})") from None
    if missing := {"user", "items"} - set(frame.columns):
        raise DataError(f"{path}: there is no column {' or '.join(sorted(missing))}")
    further = {"ratings": "rating", "times": "time"}
    for number, row in enumerate(frame.iter_rows(named=True), start=1):
        entries = [_entry(item) for item in row["items"]]
        for column, field in further.items():
            for entry, value in zip(entries, row.get(column) or (), strict=False):
                entry[field] = value
        yield f"{path}, row {number}", row["user"], entries


def _entry(item: Any) -> dict[str, Any]:
    if isinstance(item, Mapping):
        return dict(item)
    if isinstance(item, Sequence) and not isinstance(item, str) and len(item) == 2:
        return {"item": item[0], "time": item[1]}
    return {"item": item}
