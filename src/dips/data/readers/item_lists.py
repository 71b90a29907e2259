"""Read each user's list of last N items from other systems: JSON lines, Parquet, JSON objects.

Knows nothing about sketches: it yields users and their interactions, oldest first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dips.errors import DataError

SUFFIXES = (".jsonl", ".parquet", ".json")
Entry = dict[str, Any]
"""Fields of an interaction: `item`, and optionally `rating` and `time`."""
Row = tuple[str, Any, list[Entry]]
"""Where the row is in the file (for messages), the user, and the entries."""


def read_item_lists(
    path: Path, *, newest_first: bool = False, prefix: str = ""
) -> Iterator[tuple[str, list[Entry]]]:
    """Yield users and their item lists. The suffix of the file is its format:

    - `.jsonl`: one line per user, {"user": U, "items": [...]}, optionally `ratings` and `times`
    - `.parquet`: columns of these names
    - `.json`: one object from users to lists, for instance a dump of Redis lists

    An item is a string, an object with `item`, `rating` and `time`, or a pair of item and time.

    Args:
        path: The file.
        newest_first: Whether the lists start with the newest item.
        prefix: Removed from the keys, for instance `user:`.

    Yields:
        A user id, and per interaction a dict with `item` and optionally `rating` and `time`.

    Raises:
        DataError: If the file does not exist or does not have this format, if a user is not a text
            or a whole number, or if a list of ratings or times has another length than its items.
    """
    if path.suffix not in SUFFIXES:
        raise DataError(f"{path}: the name must end in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    reader = {".jsonl": _json_lines, ".parquet": _parquet, ".json": _json_object}[path.suffix]
    for where, user, entries in reader(path):
        yield _user(where, user).removeprefix(prefix), entries[::-1] if newest_first else entries


def _json_lines(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            where = f"{path}, line {number}"
            try:
                row = json.loads(line)
                user, items = row["user"], row["items"]
            except (ValueError, KeyError, TypeError, RecursionError):
                raise DataError(
                    f'{where}: not of the form {{"user": U, "items": [...]}}; '
                    "correct or remove this line"
                ) from None
            yield where, user, _entries(where, items, row)


def _json_object(path: Path) -> Iterator[Row]:
    """Read one JSON object from users to lists."""
    try:
        lists = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error})") from None
    if not isinstance(lists, Mapping):
        raise DataError(f"{path}: expected one object from keys to lists")
    for key, items in lists.items():
        where = f"{path}, key '{key}'"
        yield where, key, _entries(where, items, {})


def _parquet(path: Path) -> Iterator[Row]:
    import polars

    try:
        frame = polars.read_parquet(path)
    except (OSError, polars.exceptions.PolarsError) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({error})") from None
    if missing := {"user", "items"} - set(frame.columns):
        raise DataError(f"{path}: there is no column {' or '.join(sorted(missing))}")
    for number, row in enumerate(frame.iter_rows(named=True), start=1):
        where = f"{path}, row {number}"
        yield where, row["user"], _entries(where, row["items"], row)


def _user(where: str, user: Any) -> str:
    """Return the name of a user; raise `DataError` if it is none."""
    if user is None or user == "":
        raise DataError(f"{where}: user is missing; give a user id or remove this row")
    if isinstance(user, bool) or not isinstance(user, str | int):
        kind = f"{str(user)[:40]!r}"
        raise DataError(f"{where}: user is {kind}, not a text or a whole number; correct this row")
    try:
        str(user).encode()
    except UnicodeEncodeError:
        raise DataError(f"{where}: user is not valid Unicode; correct this row") from None
    return str(user)


def _entries(where: str, items: Any, row: Mapping[str, Any]) -> list[Entry]:
    """Return the fields of each item of a list, with the ratings and times of its row.

    Raises:
        DataError: `items` is not a list, or `ratings` or `times` are not lists of its length.
    """
    if not _is_list(items):
        raise DataError(
            f"{where}: items is {str(items)[:40]!r}, not a list; correct or remove this row"
        )
    entries = [_entry(item) for item in items]
    for column, field in (("ratings", "rating"), ("times", "time")):
        values = row.get(column)
        if values is None:  # no such column, or no values for this user
            continue
        if not _is_list(values) or len(values) != len(entries):
            raise DataError(
                f"{where}: {column} must be a list of {len(entries)} values, one per item; "
                "correct this row, or write null if there are none"
            )
        for entry, value in zip(entries, values, strict=True):
            entry[field] = value
    return entries


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _entry(item: Any) -> Entry:
    if isinstance(item, Mapping):
        return dict(item)
    if _is_list(item) and len(item) == 2:
        return {"item": item[0], "time": item[1]}
    return {"item": item}
