"""Side information as tensors: unpack the number that is stored with each event.

`dips.data.side_information` packs it. Values are multiples of a power of 2, so sums are exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dips.data.side_information import MIDDLE, NUMBER_BITS, STEPS, ColumnEncoding, SideInformation

ITEM_BITS = 32
"""Bits of the item in a token; the time follows."""


def token(item: Tensor, side: Tensor) -> Tensor:
    """Return the number that recommenders look an interaction up by: item and encoded time."""
    return item + ((side & ((1 << NUMBER_BITS) - 1)) << ITEM_BITS)


def item_of(tokens: Tensor) -> Tensor:
    """Return the items of tokens."""
    return tokens & ((1 << ITEM_BITS) - 1)


def time_of(tokens: Tensor) -> Tensor:
    """Return the standardised times of tokens; 0 where a token is a plain item."""
    return _number(tokens >> ITEM_BITS)


def number_of(side: Tensor, column: ColumnEncoding) -> Tensor:
    """Return a column of numbers, standardised; 0 where it is unknown."""
    return _number(code_of(side, column))


def code_of(side: Tensor, column: ColumnEncoding) -> Tensor:
    """Return the codes of a column; 0 where it is unknown."""
    return (side >> column.shift) & ((1 << column.bits) - 1)


def categories_of(side: SideInformation, items: int) -> Tensor:
    """Return the categories of each item, [items, width]; -1 until a saved state is loaded."""
    if side.table is None:
        return torch.full((items, side.width), -1)
    return torch.tensor(side.table)


def _number(code: Tensor) -> Tensor:
    return torch.where(code > 0, (code - MIDDLE).double() / STEPS, 0.0)
