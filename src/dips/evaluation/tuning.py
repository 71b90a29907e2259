"""The same trials for every policy: seeded random search over what matters. Never scores test."""

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
"""Settings that are tuned for each task, drawn log-uniformly between their bounds."""
DAMPINGS = (0.1, 1.0, 10.0)
"""Few values, because runs of the policy influence with one damping share their walks."""


def trials(count: int, task: str, seed: int = 0) -> list[dict[str, Any]]:
    """`count` settings to try; the first changes nothing, so tuning never falls behind it."""
    rng = np.random.default_rng(seed)
    drawn: list[dict[str, Any]] = [{}]
    for _ in range(count - 1):
        point = {
            name: float(f"{np.exp(rng.uniform(np.log(low), np.log(high))):.3g}")
            for name, (low, high) in RANGES[task].items()
        }
        drawn.append({**point, "damping": float(rng.choice(DAMPINGS))})
    return drawn[:count]
