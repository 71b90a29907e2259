"""Side information as tensors: what was packed into a number per event, taken apart again.

(How it is packed: `dips.data.side_information`.) Values lie on a grid, so sums over them are exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dips.data.side_information import MIDDLE, NUMBER_BITS, STEPS, ColumnEncoding, SideInformation

ITEM_BITS = 32
"""Where the time starts in a token; items are numbered below it."""


def token(item: Tensor, side: Tensor) -> Tensor:
    """What a recommender looks an interaction up by: the item, and its time where that counts."""
    return item + ((side & ((1 << NUMBER_BITS) - 1)) << ITEM_BITS)


def item_of(tokens: Tensor) -> Tensor:
    """The items of tokens."""
    return tokens & ((1 << ITEM_BITS) - 1)


def time_of(tokens: Tensor) -> Tensor:
    """The times of tokens, standardised; 0 where a token is a bare item."""
    return _number(tokens >> ITEM_BITS)


def number_of(side: Tensor, column: ColumnEncoding) -> Tensor:
    """A column of numbers, standardised; 0 where it is unknown."""
    return _number(code_of(side, column))


def code_of(side: Tensor, column: ColumnEncoding) -> Tensor:
    """The codes of a column; 0 where it is unknown."""
    return (side >> column.shift) & ((1 << column.bits) - 1)


def categories_of(sides: SideInformation, items: int) -> Tensor:
    """[items, width] the categories of each item, or of none until a state is loaded."""
    if sides.table is None:
        return torch.full((items, sides.width), -1)
    return torch.tensor(sides.table)


def _number(code: Tensor) -> Tensor:
    return torch.where(code > 0, (code - MIDDLE).double() / STEPS, 0.0)
