"""Random numbers as hashes of keys such as (seed, user, position).

A hash needs no generator state. The same key gives the same number on every device, in every
batch and after every restart. Policies use them as random priorities of interactions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

# Constants of splitmix64, as signed 64-bit integers.
INCREMENT = -7046029254386353131  # 0x9E3779B97F4A7C15
MULTIPLIER_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
MULTIPLIER_2 = -7723592293110705685  # 0x94D049BB133111EB
UNIT = 2.0**-53
"""Step between the random numbers in [0, 1)."""


def splitmix64(value: Tensor) -> Tensor:
    """Return the splitmix64 finaliser of 64-bit integers of any shape; overflow wraps."""
    value = (value ^ _logical_shift(value, 30)) * MULTIPLIER_1
    value = (value ^ _logical_shift(value, 27)) * MULTIPLIER_2
    return value ^ _logical_shift(value, 31)


def combine(key: Tensor, *parts: Tensor | int) -> Tensor:
    """Return a new key from a key and further integers; the order of the parts matters.

    Args:
        key: [...] int64 keys.
        *parts: Integers, or integer tensors that broadcast with `key`.

    Returns:
        [...] int64 keys.
    """
    for part in parts:
        if isinstance(part, Tensor):
            number: Tensor | int = part.to(key.device, torch.int64) * MULTIPLIER_1
        else:
            number = _wrap(int(part) * MULTIPLIER_1)
        key = splitmix64((key ^ number) + INCREMENT)
    return key


def uniform(key: Tensor, *parts: Tensor | int) -> Tensor:
    """Return uniform random numbers that are functions of a key and further integers.

    Args:
        key: [...] int64 keys.
        *parts: Integers, or integer tensors that broadcast with `key`.

    Returns:
        [...] float64 in [0, 1), with 53 random bits.
    """
    return _logical_shift(combine(key, *parts), 11).double() * UNIT


def text_keys(names: Iterable[str]) -> Tensor:
    """Return one int64 key per string, the same in every process and on every machine.

    >>> text_keys(["alice", "bob"]).shape
    torch.Size([2])
    """
    digests = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names]
    values = [int.from_bytes(digest, "little", signed=True) for digest in digests]
    return torch.tensor(values, dtype=torch.int64)


def _wrap(number: int) -> int:
    """Wrap a Python integer to a signed 64-bit integer."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _logical_shift(value: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros; torch's own shift keeps the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
