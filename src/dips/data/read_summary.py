"""`ReadSummary`: which columns of a table were read, which were not, and what to look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ReadSummary:
    """What a reader made of the columns of a table.

    >>> print(ReadSummary("x.csv", {"user": "who", "item": "what"}, ("price",)))
    read x.csv: user = who, item = what; no times: in the order of the file; not read: price
    """

    place: str
    """The file, for messages."""
    columns: Mapping[str, str]
    """Name of the column of each field: `user`, `item`, `rating` and `time`."""
    ignored: tuple[str, ...] = ()
    """Columns that were not read."""
    side: tuple[str, ...] = ()
    """Further event columns that were read."""
    warnings: tuple[str, ...] = ()
    """Sentences about what can be read, but is probably not meant so."""

    def __str__(self) -> str:
        parts = [", ".join(f"{field} = {column}" for field, column in self.columns.items())]
        if "time" not in self.columns:
            parts.append("no times: in the order of the file")
        if self.side:
            parts.append(f"side information: {', '.join(self.side)}")
        if self.ignored:
            parts.append(f"not read: {', '.join(name or '(no name)' for name in self.ignored)}")
        return f"read {self.place}: {'; '.join(parts)}"
