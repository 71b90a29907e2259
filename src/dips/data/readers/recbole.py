"""Read RecBole's atomic files: `.inter`, with an optional `.item`. Knows no dataset."""

from __future__ import annotations

from dips.data.interactions import Interactions
from dips.data.readers.assembly import ItemMetadata, assemble
from dips.data.readers.columns import CATEGORIES, TITLES, ColumnNames, guess
from dips.data.readers.delimited import decode_lines
from dips.data.readers.source import Source
from dips.data.readers.table import read_text
from dips.errors import DataError

_TYPES = ("token", "token_seq", "float", "float_seq")


def read(source: Source, columns: ColumnNames | None = None) -> Interactions:
    """Read a table whose header has a type with each name, such as `user_id:token`.

    Args:
        source: Directory, file or archive.
        columns: Names of the columns without type; by default they are guessed.

    Raises:
        DataError: If a column has no type, or a line is invalid.
    """
    name = source.need("*.inter")
    header = _header(_first_line(source, name), f"{source.place(name)}, line 1")
    typed = {f"{field}:{kind}": field for field, kind in header.items()}
    rows = read_text(source, name, columns or ColumnNames(), renames=typed)
    return assemble(rows, metadata=_metadata(source, name.removesuffix(".inter") + ".item"))


def _first_line(source: Source, name: str) -> str:
    """Return the first line of a file."""
    return next(source.blocks(name, 1 << 12)).split(b"\n", 1)[0].decode("utf-8", "replace")


def _header(line: str, place: str) -> dict[str, str]:
    fields = {}
    for column in line.rstrip("\r").split("\t"):
        field, _, kind = column.rpartition(":")
        if kind not in _TYPES or not field:
            raise DataError(
                f"{place}: column '{column}' has no type; "
                f"an atomic file writes name:type with a type of {', '.join(_TYPES)}"
            )
        fields[field] = kind
    return fields


def _metadata(source: Source, name: str) -> ItemMetadata:
    if name not in source.names:
        return ItemMetadata()
    first, *lines = decode_lines(source, name)
    header = list(_header(first, f"{source.place(name)}, line 1"))
    item = header.index(guess(header, ["itemid", "item"]) or header[0])
    title, genres = guess(header, TITLES), guess(header, CATEGORIES)
    titles, categories = {}, {}
    for number, line in enumerate(lines, start=2):
        fields = line.split("\t")
        if len(fields) < len(header):
            raise DataError(
                f"{source.place(name)}, line {number}: too few fields in {line[:80]!r}, "
                f"expected {len(header)}; correct or remove this line"
            )
        if title is not None:
            titles[fields[item]] = fields[header.index(title)]
        if genres is not None:
            categories[fields[item]] = fields[header.index(genres)].split()
    return ItemMetadata(titles, categories)
