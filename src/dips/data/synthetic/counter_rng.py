"""Counter-based random numbers: hashes of (key, time, purpose), in any order of calls.

Knows nothing about users or items.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
UInt64 = npt.NDArray[np.uint64]

PURPOSES: Final = 16
"""Number of independent values per key and time."""
INCREMENT: Final = 0x9E3779B97F4A7C15
"""Increment of splitmix64."""


def make_keys(seed: int, count: int) -> UInt64:
    """Return [count] keys; the first keys do not depend on `count`."""
    first = splitmix64(np.array([seed], dtype=np.uint64))
    return splitmix64(np.arange(count, dtype=np.uint64) + first)


def splitmix64(bits: UInt64) -> UInt64:
    """Return the splitmix64 finaliser of 64-bit integers."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def random_bits(key: UInt64, time: int, purpose: int) -> UInt64:
    """Return 64 random bits per key; purposes from 0 to `PURPOSES` - 1 are independent."""
    counter = (time * PURPOSES + purpose + 1) * INCREMENT % 2**64
    return splitmix64(key + np.uint64(counter))


def uniform(bits: UInt64) -> Float64:
    """Return uniform numbers in [0, 1) from random bits."""
    value: Float64 = np.multiply(bits >> np.uint64(11), 2.0**-53, dtype=np.float64)
    return value


def normal(bits: UInt64) -> Float64:
    """Return nearly normal numbers from random bits: the sum of four uniforms of 16 bits.

    The mean is 0, the variance 1, and the largest absolute value 3.5.
    """
    quarter = np.uint64(0xFFFF)
    total = (bits & quarter) + (bits >> np.uint64(48))
    total += (bits >> np.uint64(16) & quarter) + (bits >> np.uint64(32) & quarter)
    centred: Float64 = np.multiply(total, 2.0**-16, dtype=np.float64) - (2.0 - 2.0**-15)
    return centred * float(np.sqrt(3.0))
