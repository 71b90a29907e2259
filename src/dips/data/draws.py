"""Random draws as hashes of key, time and purpose, in any order. Knows nothing of worlds."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
UInt64 = npt.NDArray[np.uint64]

PURPOSES: Final = 16
"""How many different draws a key has at one time."""
GOLDEN: Final = 0x9E3779B97F4A7C15


def keys(seed: int, count: int) -> UInt64:
    """[count] one key each for 0, 1, 2, ...: the first are the same however many there are."""
    return mix(np.arange(count, dtype=np.uint64) + mix(np.array([seed], dtype=np.uint64)))


def mix(bits: UInt64) -> UInt64:
    """Splitmix64: every bit of the result depends on every bit given."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def draw(key: UInt64, time: int, purpose: int) -> UInt64:
    """Random bits for each key; purposes from 0 to `PURPOSES` - 1 are independent."""
    step = (time * PURPOSES + purpose + 1) * GOLDEN % 2**64
    return mix(key + np.uint64(step))


def uniform(bits: UInt64) -> Float64:
    """Uniform in [0, 1)."""
    chance: Float64 = np.multiply(bits >> np.uint64(11), 2.0**-53, dtype=np.float64)
    return chance


def normal(bits: UInt64) -> Float64:
    """Nearly normal, mean 0, variance 1, within 3.5: the sum of four uniforms of 16 bits."""
    quarter = np.uint64(0xFFFF)
    total = (bits & quarter) + (bits >> np.uint64(48))
    total += (bits >> np.uint64(16) & quarter) + (bits >> np.uint64(32) & quarter)
    centred: Float64 = np.multiply(total, 2.0**-16, dtype=np.float64) - (2.0 - 2.0**-15)
    return centred * float(np.sqrt(3.0))
