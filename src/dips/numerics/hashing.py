"""Random numbers that are functions of names: (seed, user, position), never of a generator's past.

The same key gives the same draw on every device, in every batch, after every restart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
FIRST = -4658895280553007687  # 0xBF58476D1CE4E5B9
SECOND = -7723592293110705685  # 0x94D049BB133111EB
UNIT = 2.0**-53


def mix(value: Tensor) -> Tensor:
    """Scatter 64-bit integers (the finaliser of splitmix64; overflow wraps)."""
    value = (value ^ _shift(value, 30)) * FIRST
    value = (value ^ _shift(value, 27)) * SECOND
    return value ^ _shift(value, 31)


def combine(key: Tensor, *parts: Tensor | int) -> Tensor:
    """A new key from a key and further integers; the order of the parts matters."""
    for part in parts:
        if isinstance(part, Tensor):
            number: Tensor | int = part.to(key.device, torch.int64) * FIRST
        else:
            number = _wrap(int(part) * FIRST)
        key = mix((key ^ number) + GOLDEN)
    return key


def uniform(key: Tensor, *parts: Tensor | int) -> Tensor:
    """Float64 in [0, 1) from a key and further integers, with 53 random bits."""
    return _shift(combine(key, *parts), 11).double() * UNIT


def text_keys(names: Iterable[str]) -> Tensor:
    """One 64-bit key per name, the same in every process and on every machine."""
    digests = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names]
    values = [int.from_bytes(digest, "little", signed=True) for digest in digests]
    return torch.tensor(values, dtype=torch.int64)


def _wrap(number: int) -> int:
    """A Python integer as 64 bits hold it."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _shift(value: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's own keeps the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
