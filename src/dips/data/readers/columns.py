"""Names of the columns of a table, given or guessed. Knows nothing about files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dips.errors import DataError

NONE = "none"
"""Column name that means: ignore this column."""
SIDE = "side "
"""Prefix of the field of an event column (side information)."""
_GUESSES = {
    "user": "user userid uid customer customerid reviewerid member memberid",
    "item": "item itemid iid movie movieid film filmid asin parentasin product productid "
    "venue venueid poi poiid business businessid book bookid isbn artist artistid track trackid",
    "rating": "rating ratings score stars overall",
    "time": "time timestamp ts date datetime unixreviewtime unixtime utctime",
}
TITLES = ("title", "movietitle", "name", "itemname")
CATEGORIES = ("genres", "genre", "class", "categories", "category", "movieclass")


@dataclass(frozen=True, kw_only=True)
class ColumnNames:
    """Which column holds the user, item, rating and time; None: guess it from the header."""

    user: str | None = None
    item: str | None = None
    rating: str | None = None
    time: str | None = None
    side: tuple[str, ...] = ()
    """Names of further event columns to read."""

    def positional(self) -> bool:
        """Return whether columns are given by number from 1, as for a file without header."""
        given = [name for name in (*self._given().values(), *self.side) if name not in (None, NONE)]
        return bool(given) and all(name is not None and name.isdecimal() for name in given)

    def resolve(self, header: Sequence[str], place: str) -> dict[str, str]:
        """Return the column name of each field found in a header.

        Args:
            header: Column names of the table.
            place: File and line, for error messages.

        Returns:
            Column names by field: `user`, `item`, optionally `rating` and `time`, and
            `SIDE` + NAME for an event column NAME.

        Raises:
            DataError: If a given column, the user or the item is missing.
        """
        found = {}
        for field, given in self._given().items():
            if given == NONE:
                continue
            name = guess(header, _GUESSES[field].split()) if given is None else given
            if given is not None and given not in header:
                raise self._missing(field, f"no column '{given}'", header, place)
            if name is not None:
                found[field] = name
        for field in ("user", "item"):
            if field not in found:
                raise self._missing(field, f"no column that looks like the {field}", header, place)
        for name in self.side:
            if name not in header:
                known = ", ".join(header)
                raise DataError(f"{place}: there is no column '{name}' among {known}; see --side")
            if name in found.values():
                raise DataError(f"{place}: column '{name}' is read already; leave it out of --side")
        return found | {SIDE + name: name for name in self.side}

    def _given(self) -> dict[str, str | None]:
        """Return the given names of user, item, rating and time."""
        return {"user": self.user, "item": self.item, "rating": self.rating, "time": self.time}

    @staticmethod
    def _missing(field: str, what: str, header: Sequence[str], place: str) -> DataError:
        return DataError(
            f"{place}: there is {what} among {', '.join(header)}; name it with --{field}-col "
            "(of dips data prepare)"
        )


def guess(header: Sequence[str], known: Sequence[str]) -> str | None:
    """Return the column whose lower-case alphanumeric name comes first in `known`, or None."""
    plain = {"".join(filter(str.isalnum, name.lower())): name for name in reversed(header)}
    return next((plain[name] for name in known if name in plain), None)


def original_ids(header: Sequence[str]) -> str | None:
    """Return the column of an item table that holds original ids, next to `item`, or None."""
    return guess([name for name in header if name != "item"], _GUESSES["item"].split())
