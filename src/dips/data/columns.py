"""What the columns of a table are called, given or guessed. Knows nothing of files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dips.errors import DataError

NONE = "none"
"""Given as a column name: do as if there were no such column."""
SIDE = "side "
"""Begins the field of a further column."""
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
class Columns:
    """Which column holds what; None means guess it from the names."""

    user: str | None = None
    item: str | None = None
    rating: str | None = None
    time: str | None = None
    side: tuple[str, ...] = ()
    """Further columns to keep, by name."""

    def positional(self) -> bool:
        """Whether the columns are numbers (from 1), as in a file without a header."""
        given = [name for name in (*self._given().values(), *self.side) if name not in (None, NONE)]
        return bool(given) and all(name is not None and name.isdecimal() for name in given)

    def resolve(self, header: Sequence[str], place: str) -> dict[str, str]:
        """The column of each field that there is; user and item must be there.

        A further column NAME has the field `SIDE` + NAME.
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
                raise DataError(f"{place}: column '{name}' is read anyway; leave it out of --side")
        return found | {SIDE + name: name for name in self.side}

    def _given(self) -> dict[str, str | None]:
        """The names that were given to the fields that every table has."""
        return {"user": self.user, "item": self.item, "rating": self.rating, "time": self.time}

    @staticmethod
    def _missing(field: str, what: str, header: Sequence[str], place: str) -> DataError:
        return DataError(
            f"{place}: there is {what} among {', '.join(header)}; name it with --{field}-col "
            "(of dips data prepare)"
        )


def guess(header: Sequence[str], known: Sequence[str]) -> str | None:
    """The column whose plain name is the first known one that occurs."""
    plain = {"".join(filter(str.isalnum, name.lower())): name for name in reversed(header)}
    return next((plain[name] for name in known if name in plain), None)


def original_ids(header: Sequence[str]) -> str | None:
    """The column of an item table that holds the source's own item id, beside `item`."""
    return guess([name for name in header if name != "item"], _GUESSES["item"].split())
