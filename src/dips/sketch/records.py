"""Records of sketches and candidates: small tensors, one row per user."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dips.stream.side_information import token


class Sketch(NamedTuple):
    """K kept interactions per user, oldest first. Empty slots come last, at position -1.

    Example:
        >>> sketch = empty(users=2, size=3)
        >>> sketch.present.any().item(), tuple(sketch.item.shape)
        (False, (2, 3))
    """

    position: Tensor  # [users, size] int64: place in the user's history, from 0
    item: Tensor  # [users, size] int64
    rating: Tensor  # [users, size] float32; 1 without ratings
    time: Tensor  # [users, size] int64 seconds; 0 without times
    repeats: Tensor  # [users, size] int64: repeat count of the item while it was kept
    side: Tensor  # [users, size] int64: side information, packed; 0 if there is none

    @property
    def token(self) -> Tensor:
        """[users, size] what a recommender looks the interactions up by."""
        return token(self.item, self.side)

    @property
    def present(self) -> Tensor:
        """[users, size] which slots hold an interaction."""
        return self.position >= 0

    def take(self, slots: Tensor) -> Sketch:
        """Return the interactions in these slots, [users, k]."""
        return Sketch(*(field.gather(1, slots) for field in self))


class Candidates(NamedTuple):
    """The sketch and the interactions since its last refresh: what a policy scores.

    The first fields are those of `Sketch`, [users, candidates]. Slots at position -1 are empty.

    Example:
        >>> from dips.testing import random_candidates
        >>> sketch, candidates = random_candidates(users=2, size=3, period=2)
        >>> candidates.age.shape, candidates.age[candidates.present].min().item()
        (torch.Size([2, 5]), 0)
    """

    position: Tensor  # [users, candidates]; -1 where empty
    item: Tensor
    rating: Tensor
    time: Tensor
    repeats: Tensor
    side: Tensor
    seen: Tensor  # [users] int64: number of interactions of the user so far
    key: Tensor  # [users] int64: random numbers are derived from it

    @property
    def present(self) -> Tensor:
        """[users, candidates] which slots hold an interaction."""
        return self.position >= 0

    @property
    def age(self) -> Tensor:
        """[users, candidates] steps since the interaction; the newest has age 0."""
        return self.seen[:, None] - 1 - self.position

    @property
    def elapsed(self) -> Tensor:
        """[users, candidates] seconds between the interaction and the newest one."""
        newest = torch.where(self.present, self.time, torch.iinfo(torch.int64).min).amax(1)
        return newest[:, None] - self.time

    @property
    def token(self) -> Tensor:
        """[users, candidates] what a recommender looks the interactions up by."""
        return token(self.item, self.side)

    @property
    def entries(self) -> Sketch:
        """The candidates as sketch entries."""
        return Sketch(*self[: len(Sketch._fields)])


def empty(users: int, size: int, device: torch.device | str = "cpu") -> Sketch:
    """Return empty sketches, [users, size]."""
    zeros = torch.zeros(users, size, dtype=torch.int64, device=device)
    return Sketch(zeros - 1, zeros, zeros.float(), zeros, zeros, zeros)
