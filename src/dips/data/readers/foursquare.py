"""Read Foursquare check-ins: global, TIST2015 and TSMC2014. Knows no other dataset."""

from __future__ import annotations

from typing import Literal

import polars as pl

from dips.data.interactions import Interactions
from dips.data.readers.assembly import ItemMetadata, RawRows, assemble
from dips.data.readers.delimited import Field, read_delimited
from dips.data.readers.source import Source
from dips.errors import DataError

City = Literal["NYC", "TKY"]
_VENUES = {
    "dataset_WWW_Checkins_anonymized.txt": ("raw_POIs.txt",),
    "dataset_TIST2015_Checkins.txt": ("dataset_TIST2015_POIs.txt",),
}
_MOMENT = "%a %b %d %H:%M:%S %z %Y"
"""Format of times such as Tue Apr 03 18:00:07 +0000 2012."""


def read(source: Source, city: City | None = None) -> Interactions:
    """Read check-ins.

    The global files have user, venue, time, offset, and a separate file of venue categories.
    TSMC2014 has user, venue, category id, category, latitude, longitude, offset, time.

    Args:
        source: Directory, file or archive.
        city: Which city of TSMC2014 to read.

    Raises:
        DataError: If a file is missing, a line is invalid, or the city is ambiguous.
    """
    name = source.first(*_VENUES)
    if name is not None and city is None:
        rows = _read_checkins(source, name, time=2)
        metadata = _venues(source, _VENUES[name.rpartition("/")[2]], rows)
        return assemble(rows, metadata=metadata)
    name = _city_file(source, city)
    rows = _read_checkins(source, name, time=7, category=3)
    kinds = rows.frame.select("item", "category").unique("item", keep="first")
    return assemble(rows, metadata=_by_venue(kinds))


def _city_file(source: Source, city: City | None) -> str:
    names = source.find(f"dataset_TSMC2014_{city or '*'}.txt")
    names = [name for name in names if "readme" not in name.lower()]
    if not names:
        return source.need(*_VENUES, f"dataset_TSMC2014_{city or '*'}.txt")
    if len(names) > 1 and source.given is None:
        raise DataError(
            f"{source.path}: holds {' and '.join(names)}; "
            "choose with --layout foursquare-nyc or --layout foursquare-tky"
        )
    return names[0]


def _read_checkins(source: Source, name: str, *, time: int, category: int | None = None) -> RawRows:
    fields = [Field("user", 0, "integer"), Field("item", 1, "text"), Field("time", time, "text")]
    if category is not None:
        fields.append(Field("category", category, "text"))
    rows = read_delimited(source, name, fields, separator="\t", latin1=category is not None)
    moments = rows.frame["time"].str.to_datetime(_MOMENT, time_unit="ms", strict=False)
    if moments.null_count():
        row = moments.is_null().arg_max() or 0
        raise DataError(
            f"{rows.where(row)}: time {rows.frame['time'][row]!r} is not like "
            "'Tue Apr 03 18:00:07 +0000 2012'; correct or remove this line"
        )
    return RawRows(rows.frame.with_columns(time=moments.dt.epoch("s")), rows.where)


def _venues(source: Source, patterns: tuple[str, ...], rows: RawRows) -> ItemMetadata:
    """Return categories of the venues that occur in the rows.

    The fields are venue, latitude, longitude, category, country.
    """
    name = source.first(*patterns)
    if name is None:
        return ItemMetadata()
    fields = [Field("item", 0, "text"), Field("category", 3, "text")]
    venues = read_delimited(source, name, fields, separator="\t").frame
    return _by_venue(venues.join(rows.frame.select("item").unique(), on="item", how="semi"))


def _by_venue(kinds: pl.DataFrame) -> ItemMetadata:
    return ItemMetadata(categories={venue: [kind] for venue, kind in kinds.iter_rows()})
