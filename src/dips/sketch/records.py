"""What is remembered of a user: small tensors, one row per user. No behaviour beyond reading."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dips.stream.side_information import token


class Sketch(NamedTuple):
    """K remembered interactions per user, oldest first; empty slots come last, at position -1."""

    position: Tensor  # [users, size] int64: place in the user's history, from 0
    item: Tensor  # [users, size] int64
    rating: Tensor  # [users, size] float32; 1 where there are no ratings
    time: Tensor  # [users, size] int64 seconds; 0 where there are no times
    repeats: Tensor  # [users, size] int64: times this item was met while it was remembered
    side: Tensor  # [users, size] int64: side information, packed; 0 where there is none

    @property
    def token(self) -> Tensor:
        """[users, size] what a recommender looks the interactions up by."""
        return token(self.item, self.side)

    @property
    def present(self) -> Tensor:
        """[users, size] which slots hold an interaction."""
        return self.position >= 0

    def take(self, slots: Tensor) -> Sketch:
        """The interactions in these slots, [users, k]."""
        return Sketch(*(field.gather(1, slots) for field in self))


class Candidates(NamedTuple):
    """The sketch and the interactions since its last refresh: what a policy chooses from."""

    position: Tensor  # [users, candidates]; -1 where empty
    item: Tensor
    rating: Tensor
    time: Tensor
    repeats: Tensor
    side: Tensor
    seen: Tensor  # [users] int64: interactions of the user so far, the newest included
    key: Tensor  # [users] int64: random draws are derived from it

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
        """[users, candidates] seconds since the interaction, by the clock of the newest."""
        newest = torch.where(self.present, self.time, torch.iinfo(torch.int64).min).amax(1)
        return newest[:, None] - self.time

    @property
    def token(self) -> Tensor:
        """[users, candidates] what a recommender looks the interactions up by."""
        return token(self.item, self.side)

    @property
    def entries(self) -> Sketch:
        """The candidates without their context."""
        return Sketch(*self[: len(Sketch._fields)])


def empty(users: int, size: int, device: torch.device | str = "cpu") -> Sketch:
    """Sketches of users who have done nothing yet."""
    nothing = torch.zeros(users, size, dtype=torch.int64, device=device)
    return Sketch(nothing - 1, nothing, nothing.float(), nothing, nothing, nothing)
