"""Random search: the same seeded trials for every policy. Trials never score test users."""

from __future__ import annotations

from typing import Any

import numpy as np

RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "explicit": {
        "inner_lr": (0.03, 0.3),
        "weight_decay": (5e-5, 4e-3),
        "learning_rate": (3e-3, 2e-2),
    },
    "implicit": {
        "inner_lr": (0.05, 5.0),
        "weight_decay": (1e-5, 1e-2),
        "learning_rate": (2e-3, 2e-2),
    },
}
"""Bounds of the tuned settings of each task; values are log-uniform."""
DAMPINGS = (0.1, 1.0, 10.0)
"""Values of `damping`; few, because runs of `influence` with the same damping share rollouts."""


def trials(count: int, task: str, seed: int = 0) -> list[dict[str, Any]]:
    """Return the settings of each trial; the first trial has the defaults.

    Args:
        count: Number of trials.
        task: explicit or implicit.
        seed: Seed of the random search.
    """
    rng = np.random.default_rng(seed)
    drawn: list[dict[str, Any]] = [{}]
    for _ in range(count - 1):
        point = {
            name: float(f"{np.exp(rng.uniform(np.log(low), np.log(high))):.3g}")
            for name, (low, high) in RANGES[task].items()
        }
        drawn.append({**point, "damping": float(rng.choice(DAMPINGS))})
    return drawn[:count]
