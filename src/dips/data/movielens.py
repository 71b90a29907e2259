"""MovieLens 100K, 1M and 10M in their official layouts. Knows nothing of any other dataset."""

from __future__ import annotations

from dips.data.assembly import ItemFacts, assemble
from dips.data.delimited import Field, decode_lines, read_delimited
from dips.data.interactions import Interactions
from dips.data.source import Source
from dips.errors import DataError

_RATINGS = [
    Field("user", 0, "integer"),
    Field("item", 1, "integer"),
    Field("rating", 2, "number"),
    Field("time", 3, "integer"),
]


def read(source: Source) -> Interactions:
    """Read `u.data` with `u.item` (100K), or `ratings.dat` with `movies.dat` (1M, 10M).

    100K and 1M are Latin-1 and have whole stars; 10M is UTF-8 and has half stars. Of the two that
    share file names only 1M has a `users.dat`.
    """
    name = source.need("u.data", "ratings.dat")
    if name.endswith("u.data"):
        separator, scale, facts = "\t", (1.0, 5.0), _facts_100k(source)
    else:
        is_1m = source.first("users.dat") is not None
        separator, scale = "::", (1.0 if is_1m else 0.5, 5.0)
        facts = _facts_dat(source, latin1=is_1m)
    rows = read_delimited(source, name, _RATINGS, separator=separator)
    return assemble(rows, scale=scale, facts=facts)


def _facts_100k(source: Source) -> ItemFacts:
    """`u.item`: id|title|release|video|url|19 flags, named in `u.genre` as name|position."""
    name, genres = source.first("u.item"), source.first("u.genre")
    if name is None:
        return ItemFacts()
    names = [line.split("|")[0] for line in decode_lines(source, genres)] if genres else []
    titles, categories = {}, {}
    for number, line in enumerate(decode_lines(source, name, latin1=True), start=1):
        fields = line.split("|")
        if len(fields) < 5:
            raise _too_few(source, name, number, line, "id|title|date|video date|url|genres")
        titles[fields[0]] = fields[1]
        flags = zip(names, fields[5:], strict=False)
        categories[fields[0]] = [genre for genre, flag in flags if flag == "1"]
    return ItemFacts(titles, categories)


def _facts_dat(source: Source, *, latin1: bool) -> ItemFacts:
    """`movies.dat`: id::title::genre|genre; a title may itself hold colons."""
    name = source.first("movies.dat")
    if name is None:
        return ItemFacts()
    titles, categories = {}, {}
    for number, line in enumerate(decode_lines(source, name, latin1=latin1), start=1):
        film, _, rest = line.partition("::")
        title, found, genres = rest.rpartition("::")
        if not found:
            raise _too_few(source, name, number, line, "id::title::genres")
        titles[film] = title
        categories[film] = [] if genres.startswith("(") else genres.split("|")
    return ItemFacts(titles, categories)


def _too_few(source: Source, name: str, number: int, line: str, layout: str) -> DataError:
    return DataError(
        f"{source.place(name)}, line {number}: too few fields in {line[:80]!r}, "
        f"expected {layout}; get the file again from its source"
    )
