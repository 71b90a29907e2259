"""Read Amazon reviews of 2014 and 2018: JSON lines or CSV of ratings. Knows no other dataset."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import polars as pl

from dips.data.interactions import Interactions
from dips.data.readers.assembly import ItemMetadata, RawRows, assemble
from dips.data.readers.delimited import Field, read_delimited
from dips.data.readers.source import Source
from dips.errors import DataError

Order = Literal["user,item", "item,user"]
STARS = (1.0, 5.0)
BLOCK = 1 << 26
"""Approximate bytes of a block of lines: 64 MiB."""
_JSON = ("*.json", "*.json.gz", "*.jsonl", "*.jsonl.gz")
_CSV = ("*.csv", "*.csv.gz")
_FIELDS = {
    "reviewerID": pl.String,
    "asin": pl.String,
    "overall": pl.Float32,
    "unixReviewTime": pl.Int64,
}
_NAMES = {"reviewerID": "user", "asin": "item", "overall": "rating", "unixReviewTime": "time"}
_PRODUCT = re.compile(r"B[0-9A-Z]{9}|[0-9]{9}[0-9X]")


def read(source: Source, order: Order | None = None) -> Interactions:
    """Read reviews in JSON lines, or ratings in CSV without a header.

    CSV files of 2014 have user,item,rating,timestamp and those of 2018 item,user,rating,timestamp,
    with exceptions. By default the order is recognised from the ids.

    Args:
        source: Directory, file or archive.
        order: Which id comes first in a CSV file.

    Raises:
        DataError: If a file is missing, a line is invalid, or the order is not recognisable.
    """
    reviews = [name for name in source.find(*_JSON) if not _is_meta(name)]
    if reviews and source.given in (None, reviews[0]):
        rows = _read_json(source, reviews[0])
    else:
        rows = _read_csv(source, source.need(*_CSV, *_JSON), order)
    return assemble(rows, scale=STARS, metadata=_metadata(source, set(rows.frame["item"].unique())))


def _is_meta(name: str) -> bool:
    return name.rpartition("/")[2].startswith("meta_")


def _read_csv(source: Source, name: str, order: Order | None) -> RawRows:
    first, second = (order or _order(source, name)).split(",")
    fields = [
        Field(first, 0, "text"),
        Field(second, 1, "text"),
        Field("rating", 2, "number"),
        Field("time", 3, "integer"),
    ]
    return read_delimited(source, name, fields, separator=",")


def _order(source: Source, name: str) -> Order:
    """Return which of the first two fields holds product ids, by majority of the first lines."""
    head = next(source.blocks(name, 1 << 16)).decode("utf-8", "replace").splitlines()[:500]
    pairs = [line.split(",")[:2] for line in head if line.count(",") >= 1]
    votes = sum(bool(_PRODUCT.fullmatch(b)) - bool(_PRODUCT.fullmatch(a)) for a, b in pairs)
    if votes == 0:
        raise DataError(
            f"{source.place(name)}: cannot recognise which of the first two fields is the product; "
            "use --layout amazon-2014 (user,item) or --layout amazon-2018 (item,user)"
        )
    return "user,item" if votes > 0 else "item,user"


def _read_json(source: Source, name: str) -> RawRows:
    """Read four fields of every review, block by block, so that review texts are not kept."""
    frames, line = [], 1
    for block in source.blocks(name, BLOCK):
        try:
            frame = pl.read_ndjson(block, schema=_FIELDS)
        except pl.exceptions.PolarsError:
            frame = None
        lines = block.count(b"\n") + (not block.endswith(b"\n"))
        if frame is None or frame.height != lines or any(frame.null_count().row(0)):
            raise _parse_error(source.place(name), block, line)
        frames.append(frame.rename(_NAMES))
        line += lines
    return RawRows(pl.concat(frames), partial(_where, source.place(name)))


def _where(place: str, row: int) -> str:
    return f"{place}, line {row + 1}"


def _parse_error(place: str, block: bytes, first: int) -> DataError:
    """Return an error that names the first bad line of a block."""
    for number, line in enumerate(block.splitlines(), start=first):
        where, shown = f"{place}, line {number}", line.decode("utf-8", "replace")[:80]
        try:
            review = json.loads(line, parse_constant=str)  # NaN, which polars refuses
        except UnicodeDecodeError:
            return DataError(f"{where}: not UTF-8 in {shown!r}; save the file as UTF-8")
        except ValueError as error:
            return DataError(f"{where}: not JSON ({error}); correct or remove this line")
        for field, kind in _FIELDS.items():
            value = review.get(field) if isinstance(review, dict) else None
            wanted, types = ("a text", str) if kind == pl.String else ("a number", int | float)
            if not isinstance(value, types):
                return DataError(
                    f"{where}: {field} is {value!r}, not {wanted}; correct or remove this line"
                )
    return DataError(f"{place}: cannot be read as JSON lines from line {first}; download it again")


def _metadata(source: Source, wanted: set[str]) -> ItemMetadata:
    """Return titles and categories from `meta_*`, if the source has it."""
    name = source.first("meta_*.json", "meta_*.json.gz")
    if name is None:
        return ItemMetadata()
    titles, categories = {}, {}
    for number, product in _products(source, name):
        asin = product.get("asin")
        if asin is None:
            place = f"{source.place(name)}, line {number}"
            raise DataError(f"{place}: asin is missing; download it again")
        if asin in wanted:
            titles[asin] = str(product.get("title", ""))
            # 2014: a list of paths; 2018: one path.
            paths = product.get("categories") or [product.get("category") or []]
            categories[asin] = sorted({part for path in paths for part in path})
    return ItemMetadata(titles, categories)


def _products(source: Source, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line numbers and products: lines of JSON (2018) or Python literals (2014)."""
    number = 0
    for block in source.blocks(name, BLOCK):
        for number, line in enumerate(block.splitlines(), start=number + 1):  # noqa: B020
            try:
                product = (
                    json.loads(line) if line.startswith(b'{"') else ast.literal_eval(line.decode())
                )
            except (ValueError, SyntaxError) as error:
                place = f"{source.place(name)}, line {number}"
                raise DataError(f"{place}: not a product ({error}); download it again") from error
            yield number, product
