"""RecBole's atomic files: `.inter`, and `.item` beside it. Knows no dataset."""

from __future__ import annotations

from dips.data.assembly import ItemFacts, assemble
from dips.data.columns import CATEGORIES, TITLES, Columns, guess
from dips.data.delimited import decode_lines
from dips.data.interactions import Interactions
from dips.data.source import Source
from dips.data.table import read_text
from dips.errors import DataError

_TYPES = ("token", "token_seq", "float", "float_seq")


def read(source: Source, columns: Columns | None = None) -> Interactions:
    """Read a table whose header gives a type with each name, such as `user_id:token`."""
    name = source.need("*.inter")
    header = _header(decode_header(source, name), f"{source.place(name)}, line 1")
    typed = {f"{field}:{kind}": field for field, kind in header.items()}
    rows = read_text(source, name, columns or Columns(), renames=typed)
    return assemble(rows, facts=_facts(source, name.removesuffix(".inter") + ".item"))


def decode_header(source: Source, name: str) -> str:
    """The first line of a member."""
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


def _facts(source: Source, name: str) -> ItemFacts:
    if name not in source.names:
        return ItemFacts()
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
    return ItemFacts(titles, categories)
