"""Read MovieLens 100K, 1M and 10M in their official layouts. Knows no other dataset."""

from __future__ import annotations

from dips.data.interactions import Interactions
from dips.data.readers.assembly import ItemMetadata, assemble
from dips.data.readers.delimited import Field, decode_lines, read_delimited
from dips.data.readers.source import Source
from dips.errors import DataError

_RATINGS = [
    Field("user", 0, "integer"),
    Field("item", 1, "integer"),
    Field("rating", 2, "number"),
    Field("time", 3, "integer"),
]


def read(source: Source) -> Interactions:
    """Read `u.data` with `u.item` (100K), or `ratings.dat` with `movies.dat` (1M, 10M).

    100K and 1M are Latin-1 with whole stars; 10M is UTF-8 with half stars. 1M and 10M have equal
    file names, but only 1M has a `users.dat`.

    Raises:
        DataError: If a file is missing or a line is invalid.
    """
    name = source.need("u.data", "ratings.dat")
    if name.endswith("u.data"):
        separator, scale, metadata = "\t", (1.0, 5.0), _metadata_100k(source)
    else:
        is_1m = source.first("users.dat") is not None
        separator, scale = "::", (1.0 if is_1m else 0.5, 5.0)
        metadata = _metadata_dat(source, latin1=is_1m)
    rows = read_delimited(source, name, _RATINGS, separator=separator)
    return assemble(rows, scale=scale, metadata=metadata)


def _metadata_100k(source: Source) -> ItemMetadata:
    """`u.item`: id|title|release|video|url|19 flags, named in `u.genre` as name|position."""
    name, genres = source.first("u.item"), source.first("u.genre")
    if name is None:
        return ItemMetadata()
    names = [line.split("|")[0] for line in decode_lines(source, genres)] if genres else []
    titles, categories = {}, {}
    for number, line in enumerate(decode_lines(source, name, latin1=True), start=1):
        fields = line.split("|")
        if len(fields) < 5:
            raise _too_few(source, name, number, line, "id|title|date|video date|url|genres")
        titles[fields[0]] = fields[1]
        flags = zip(names, fields[5:], strict=False)
        categories[fields[0]] = [genre for genre, flag in flags if flag == "1"]
    return ItemMetadata(titles, categories)


def _metadata_dat(source: Source, *, latin1: bool) -> ItemMetadata:
    """`movies.dat`: id::title::genre|genre; a title may itself hold colons."""
    name = source.first("movies.dat")
    if name is None:
        return ItemMetadata()
    titles, categories = {}, {}
    for number, line in enumerate(decode_lines(source, name, latin1=latin1), start=1):
        film, _, rest = line.partition("::")
        title, found, genres = rest.rpartition("::")
        if not found:
            raise _too_few(source, name, number, line, "id::title::genres")
        titles[film] = title
        categories[film] = [] if genres.startswith("(") else genres.split("|")
    return ItemMetadata(titles, categories)


def _too_few(source: Source, name: str, number: int, line: str, layout: str) -> DataError:
    return DataError(
        f"{source.place(name)}, line {number}: too few fields in {line[:80]!r}, "
        f"expected {layout}; download the file again"
    )
