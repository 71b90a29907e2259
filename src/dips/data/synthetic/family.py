"""A family of synthetic datasets ("worlds") on which a policy is pre-trained. Knows no models.

Every property of a world is drawn from a fixed range: how lasting preferences are, how fast
interests drift, noise and bias of ratings, their steps, lengths of histories, size of the
catalogue, whether there are times, sketch size and refresh period. The ranges were fixed before
any pre-trained policy was tried on real data. Held-out worlds are drawn from the same ranges with
other seeds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

import numpy as np

from dips.data.interactions import Interactions
from dips.data.synthetic.simulation import stream

Kind = Literal["ratings", "items", "repeats"]
"""What is predicted: ratings, items that do not repeat, or items that repeat."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
SIZES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
"""Sketch sizes, which the worlds of a family take in turn."""
PERIODS: Final = (1, 1, 2, 4, 8)
"""Refresh periods, with their relative frequencies."""
EVENTS: Final = 20_000
"""About so many events has a world, before repeats are removed."""


@dataclass(frozen=True, kw_only=True)
class World:
    """One synthetic dataset, with the sketches that a policy keeps there."""

    kind: Kind
    size: int
    """Sketch size K."""
    every: int
    """Interactions between refreshes."""
    has_times: bool
    options: dict[str, Any]
    """Arguments of `stream`."""

    def load(self) -> Interactions:
        """Return the interactions."""
        data = stream(**self.options)
        return data if self.has_times else replace(data, time=None)


def family(kind: Kind, count: int, *, held_out: bool = False, seed: int = 0) -> list[World]:
    """Return the first `count` worlds of a family.

    Args:
        kind: What is predicted.
        count: Number of worlds. Their sketch sizes are those of `SIZES` in turn.
        held_out: Whether to return held-out worlds, which no policy is trained on.
        seed: Seed of the family.

    >>> [world.size for world in family("ratings", 12)]
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 1]
    """
    return [_world(kind, index, held_out, seed) for index in range(count)]


def _world(kind: Kind, index: int, held_out: bool, seed: int) -> World:
    rng = np.random.default_rng([seed, KINDS.index(kind), int(held_out), index])
    size = SIZES[index % len(SIZES)]
    events = max(int(rng.integers(30, 150)), 3 * size)
    options: dict[str, Any] = {
        "users": max(100, EVENTS // events),
        "items": int(np.exp(rng.uniform(np.log(200), np.log(2000)))),
        "events": events,
        "durability": float(rng.uniform(0.0, 1.0)),
        "drift": float(rng.uniform(0.05, 1.0)),
        "seed": int(rng.integers(2**31)),
    }
    if kind == "ratings":
        options |= {
            "mean_rating": float(rng.uniform(2.8, 4.2)),
            "rating_step": float(rng.choice([0.5, 1.0, 2.0])),
            "user_bias": float(rng.uniform(0.0, 0.8)),
            "noise": float(rng.uniform(0.2, 1.0)),
        }
    else:
        options |= {"implicit": True, "repeats": kind == "repeats"}
    return World(
        kind=kind,
        size=size,
        every=int(rng.choice(PERIODS)),
        has_times=bool(rng.random() < 0.7),
        options=options,
    )
