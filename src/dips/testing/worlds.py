"""Small random datasets and candidates: functions of a seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dips.data.interactions import Interactions, from_arrays
from dips.sketch.records import Candidates, Sketch
from dips.sketch.update import join


def random_world(
    lengths: Sequence[int] = (9, 4, 12, 1, 7),
    *,
    items: int = 8,
    seed: int = 0,
    explicit: bool = True,
) -> Interactions:
    """Return a random dataset; items repeat, ratings are whole numbers, some times are equal.

    Args:
        lengths: Number of interactions of each user.
        items: Number of items.
        seed: Seed of the random numbers.
        explicit: Whether there are ratings.

    Example:
        >>> random_world([3, 2]).users
        2
    """
    rng = np.random.default_rng(seed)
    total = sum(lengths)
    item = rng.integers(0, items, total)
    item[:1] = items - 1  # the vocabulary ends with the last item
    return from_arrays(
        np.repeat(np.arange(len(lengths)), lengths),
        item,
        rng.integers(1, 6, total).astype(np.float32) if explicit else None,
        np.sort(rng.integers(0, 40 * total, total)) // 3 * 3,
        about={"name": "random world"},
    )


def random_candidates(
    users: int = 6,
    size: int = 3,
    period: int = 2,
    *,
    items: int = 8,
    seed: int = 0,
    distinct: bool = False,
) -> tuple[Sketch, Candidates]:
    """Return random sketches and the candidates of a refresh; some sketches have empty slots.

    Args:
        users: Number of users.
        size: Size of the sketch.
        period: Number of new interactions.
        items: Number of items.
        seed: Seed of the random numbers.
        distinct: Whether the items of a user's candidates are all different.

    Returns:
        The sketches [users, size] and the candidates [users, size + period].

    Example:
        >>> sketch, candidates = random_candidates(users=2, size=3, period=2)
        >>> candidates.position.shape
        torch.Size([2, 5])
    """
    rng = np.random.default_rng(seed)
    width = size + period
    rows: list[list[list[float]]] = []
    for user in range(users):
        held = int(rng.integers(0, size + 1)) if user % 2 else size
        past = held + (int(rng.integers(0, 20)) if held == size else 0)
        kept = np.sort(rng.choice(past, held, replace=False)) if held else np.zeros(0, int)
        pool = rng.permutation(max(items, width)) if distinct else rng.integers(0, items, width)
        item, rating = pool[:width], rng.integers(1, 6, width)
        time = np.cumsum(rng.integers(0, 50, width))
        entries = [[p, i, r, t, 1, 0] for p, i, r, t in zip(kept, item, rating, time, strict=False)]
        entries += [[-1, 0, 0, 0, 0, 0]] * (size - held)
        for slot in range(period):
            at = size + slot
            entries.append([past + slot, item[at], rating[at], time[at], 1, 0])
        rows.append(entries)
    table = torch.tensor(rows, dtype=torch.float64).permute(2, 0, 1)  # [fields, users, width]
    fields = [column.float() if index == 2 else column.long() for index, column in enumerate(table)]
    sketch = Sketch(*(field[:, :size].contiguous() for field in fields))
    arrivals = Sketch(*(field[:, size:].contiguous() for field in fields))
    key = torch.from_numpy(rng.integers(-(2**62), 2**62, users))
    return sketch, join(sketch, arrivals, arrivals.position[:, -1] + 1, key)
