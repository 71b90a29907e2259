"""Assertions of the checks. They also run under `python -O`."""

from __future__ import annotations

import torch
from torch import Tensor


def require(condition: bool, sentence: str) -> None:
    """Raise AssertionError with this message unless the condition holds."""
    if not condition:
        raise AssertionError(sentence)


def same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same shape and bits."""
    return one.shape == other.shape and torch.equal(one, other)


def close(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Return whether two tensors are equal up to a tolerance; NaN is never equal."""
    return one.shape == other.shape and torch.allclose(one, other, tolerance, tolerance)
