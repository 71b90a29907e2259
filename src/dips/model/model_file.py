"""Read the file of a trained model, which may come from anyone.

Nothing in it is executed, and nothing much larger than the file is allocated: shapes are compared
with those of the file before an object is made. Every fault is a `ValueError`.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

from dips.data.interactions import Strings

KEY = "dips"
"""Key of the metadata that holds what is not a tensor, as JSON."""
LENGTH_BYTES = 8
"""Bytes of the length of a safetensors header, which comes first in the file."""
Made = TypeVar("Made")


def read_model_file(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the description and the tensors of a model.

    Args:
        path: A safetensors file.

    Raises:
        ValueError: A key occurs twice, or a number is not finite.
        SafetensorError: It is not a safetensors file.
        OSError: It cannot be read.
    """
    if not path.is_file():
        raise ValueError("it is not a file")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        header = file.read(min(length, path.stat().st_size))
    with safe_open(path, framework="pt") as tensors:
        _parse_json(header)  # safetensors itself takes the last one of equal keys
        about = _parse_json((tensors.metadata() or {})[KEY])
        if not isinstance(about, dict):
            raise ValueError("its description is not a JSON object")
        return about, {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118


def read_item_ids(tensors: Mapping[str, Tensor]) -> Strings:
    """Return the item ids of a model.

    Raises:
        ValueError: The ids are not different texts in UTF-8.
    """
    blob, offsets = tensors["items.blob"].numpy(), tensors["items.offsets"].numpy()
    if blob.dtype != np.uint8 or offsets.dtype != np.int64 or blob.ndim != 1 or offsets.ndim != 1:
        raise ValueError("its item ids have another type")
    if not len(offsets) or offsets[0] or offsets[-1] != len(blob) or (np.diff(offsets) < 0).any():
        raise ValueError("its item ids have wrong offsets")
    ids = Strings(blob, offsets)
    if len(ids.index) != len(ids):
        raise ValueError("an item id occurs twice")
    return ids


def make_with_parameters(
    make: Callable[[], Made], state: Mapping[str, Tensor], *, own: bool
) -> Made:
    """Make an object, and load its parameters if it has any.

    It is first made without memory, to compare its parameters with those of the file.

    Args:
        make: Makes the object with initial parameters.
        state: Parameters of the file.
        own: Whether its class is a plug-in. If that cannot be made without memory, its parameters
            are compared afterwards.

    Raises:
        ValueError: The file has other parameters, or some that are not finite.
    """
    for name, value in state.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise ValueError(f"{name} holds a number that is not finite")
    try:
        with torch.device("meta"):
            _check_state(make(), state)
    except Exception as error:
        if isinstance(error, _OtherParameters) or not own:
            raise
    made = make()
    _check_state(made, state)
    if isinstance(made, nn.Module):
        made.load_state_dict(dict(state))
    return made


def check_fields(described: Any) -> None:
    """Check the values of a dataclass against the types of its fields, also of nested ones.

    Args:
        described: The object; a field may be None whatever its type is.

    Raises:
        ValueError: A value has another type, or is below the field's least value.
    """
    hints = typing.get_type_hints(type(described))
    for field in fields(described):
        value, hint = getattr(described, field.name), hints[field.name]
        if not _has_type(value, hint):
            raise ValueError(f"{field.name} is {str(value)[:40]!r}")
        low = field.metadata.get("low")
        if low is not None and value is not None and value < low:
            raise ValueError(f"{field.name} is {value}: it must be at least {low}")
        for nested in value if isinstance(value, tuple) else (value,):
            if is_dataclass(nested):
                check_fields(nested)


class _OtherParameters(ValueError):
    """Raised when a file has other parameters than the object that it describes."""


def _check_state(made: Any, state: Mapping[str, Tensor]) -> None:
    expected = made.state_dict() if isinstance(made, nn.Module) else {}
    for name in expected.keys() ^ state.keys():
        where = "not in the file" if name in expected else "not part of the model"
        raise _OtherParameters(f"{name} is {where}")
    for name, value in expected.items():
        found = state[name]
        if (found.shape, found.dtype) != (value.shape, value.dtype):
            raise _OtherParameters(
                f"{name} is {_describe(found)}, where the model has {_describe(value)}"
            )


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _has_type(value: Any, hint: Any) -> bool:
    """Return whether a value has a type; None has all of them, a whole number is a float."""
    if value is None:
        return True
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_has_type(value, choice) for choice in typing.get_args(hint))
    if origin is tuple:
        inner = typing.get_args(hint)[0]
        return isinstance(value, tuple) and all(_has_type(one, inner) for one in value)
    if hint in (int, float):
        numbers = int if hint is int else int | float
        return isinstance(value, numbers) and not isinstance(value, bool)
    return not isinstance(hint, type) or isinstance(value, hint)


def _parse_json(text: str | bytes) -> Any:
    """Parse JSON without repeated keys and without numbers that are not finite."""
    try:
        return json.loads(
            text,
            object_pairs_hook=_different_keys,
            parse_float=_finite,
            parse_constant=_finite,
        )
    except RecursionError:
        raise ValueError("its description is nested too deeply") from None


def _different_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key of its header occurs twice")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value
