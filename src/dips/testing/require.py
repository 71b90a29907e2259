"""How a check says no: an AssertionError with a sentence, whatever flags Python runs with."""

from __future__ import annotations

import torch
from torch import Tensor


def require(condition: bool, sentence: str) -> None:
    """Raise with the sentence unless the condition holds."""
    if not condition:
        raise AssertionError(sentence)


def same(one: Tensor, other: Tensor) -> bool:
    """Equal to the last bit, in shape too."""
    return one.shape == other.shape and torch.equal(one, other)


def close(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Equal up to a tolerance, absolute and relative; not-a-number is never equal."""
    return one.shape == other.shape and torch.allclose(one, other, tolerance, tolerance)
