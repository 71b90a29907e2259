"""Prepared datasets: one safetensors file, opened memory-mapped. Needs no polars."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import save_file

from dips.data.atomic_write import atomic_write
from dips.data.filtering import compact
from dips.data.interactions import Categories, EventColumn, Interactions, Strings
from dips.errors import DataError

FORMAT = "dips-interactions"
VERSION = 1
SUFFIX = ".safetensors"
_DTYPES = {"I64": np.int64, "I32": np.int32, "F32": np.float32, "U8": np.uint8}
_BY_USER = ("starts", "lengths", "warmup", "user_rows")

Arrays = dict[str, npt.NDArray[Any]]


def write(data: Interactions, path: Path) -> None:
    """Write a dataset as one safetensors file, atomically; of a part, only its own users.

    Args:
        data: The dataset.
        path: The file; by convention it ends in `.safetensors`.

    Raises:
        DataError: If the file cannot be written.
    """
    data = compact(data)
    arrays: Arrays = {"item": data.item}
    arrays |= {name: getattr(data, name) for name in _BY_USER}
    arrays |= _strings("user_ids", data.user_ids) | _strings("item_ids", data.item_ids)
    if data.rating is not None:
        arrays["rating"] = data.rating
    if data.time is not None:
        arrays["time"] = data.time
    if data.titles is not None:
        arrays |= _strings("titles", data.titles)
    if data.categories is not None:
        arrays |= _strings("categories.names", data.categories.names)
        arrays["categories.offsets"] = data.categories.offsets
        arrays["categories.codes"] = data.categories.codes
    for name, column in data.side.items():
        arrays[f"side.{name}.values"] = column.values
        if column.names is not None:
            arrays |= _strings(f"side.{name}.names", column.names)
    facts = {"format": FORMAT, "version": str(VERSION), "about": json.dumps(data.about)}
    with atomic_write(path) as part:
        try:
            save_file({name: np.ascontiguousarray(a) for name, a in arrays.items()}, part, facts)
        except SafetensorError as error:
            raise OSError(error) from error


def open_prepared(path: Path) -> Interactions:
    """Open a prepared dataset; its columns are memory-mapped and read on use.

    Raises:
        DataError: If the file does not exist, is damaged, or is no prepared dataset.
    """
    facts, arrays = _map(path)
    if facts.get("format") != FORMAT:
        raise _wrong(path, "is a safetensors file, but not a prepared dataset")
    if facts.get("version") != str(VERSION):
        raise _wrong(path, f"has version {facts.get('version')}, this dips reads {VERSION}")
    try:
        data = Interactions(
            item=arrays["item"],
            rating=arrays.get("rating"),
            time=arrays.get("time"),
            **{name: arrays[name] for name in _BY_USER},
            user_ids=_open_strings(arrays, "user_ids"),
            item_ids=_open_strings(arrays, "item_ids"),
            titles=_open_strings(arrays, "titles") if "titles.blob" in arrays else None,
            categories=_open_categories(arrays) if "categories.codes" in arrays else None,
            side=_open_side(arrays),
            about=json.loads(facts["about"]),
            read_summary=None,
        )
        _check(data)
    except (KeyError, ValueError) as error:
        raise _wrong(path, f"is incomplete ({error})") from error
    return data


def _map(path: Path) -> tuple[dict[str, str], Arrays]:
    """Return the metadata and the tensors of a safetensors file, as views of one memory map."""
    try:
        # Copy on write: the file is never changed, yet torch takes the arrays without a copy.
        buffer = np.memmap(path, mode="c", dtype=np.uint8)
        start = 8 + int(buffer[:8].view("<u8")[0])
        header = json.loads(buffer[8:start].tobytes())
        facts = header.pop("__metadata__", {})
        arrays = {}
        for name, entry in header.items():
            low, high = entry["data_offsets"]
            view = np.asarray(buffer[start + low : start + high]).view(_DTYPES[entry["dtype"]])
            arrays[name] = view.reshape(entry["shape"])
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file") from error
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise _wrong(path, f"cannot be read as a safetensors file ({error})") from error
    return facts, arrays


def _strings(name: str, strings: Strings) -> Arrays:
    return {f"{name}.blob": strings.blob, f"{name}.offsets": strings.offsets}


def _open_strings(arrays: Arrays, name: str) -> Strings:
    return Strings(arrays[f"{name}.blob"], arrays[f"{name}.offsets"])


def _open_categories(arrays: Arrays) -> Categories:
    names = _open_strings(arrays, "categories.names")
    return Categories(names, arrays["categories.offsets"], arrays["categories.codes"])


def _open_side(arrays: Arrays) -> dict[str, EventColumn]:
    """Return the event columns; those of codes with their names."""
    values = [name for name in arrays if name.startswith("side.") and name.endswith(".values")]
    found = {}
    for name in values:
        column = name.removesuffix(".values")
        named = f"{column}.names.blob" in arrays
        names = _open_strings(arrays, f"{column}.names") if named else None
        found[column.removeprefix("side.")] = EventColumn(arrays[name], names)
    return found


def _check(data: Interactions) -> None:
    """Raise `ValueError` if sizes disagree; does not read the event columns."""
    events = len(data.item)
    columns = [column for column in (data.rating, data.time) if column is not None]
    columns += [column.values for column in data.side.values()]
    if any(len(column) != events for column in columns):
        raise ValueError("the columns of events differ in length")
    if data.users == 0 or any(len(getattr(data, name)) != data.users for name in _BY_USER):
        raise ValueError("the columns of users differ in length")
    if int((data.starts + data.lengths).max()) > events or int(data.starts.min()) < 0:
        raise ValueError("a user's events lie outside the columns")
    for strings in (data.user_ids, data.item_ids):
        if int(strings.offsets[-1]) != len(strings.blob):
            raise ValueError("a vocabulary is cut short")


def _wrong(path: Path, what: str) -> DataError:
    return DataError(f"{path}: {what}; make it again with 'dips data prepare SOURCE --out {path}'")
