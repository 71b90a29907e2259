"""How long training will take, from a timed sample of the users."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dips.data.interactions import Interactions
from dips.data.splitting import Parts
from dips.studies.checks import resolved
from dips.studies.run import starts_of, train_runs
from dips.training.config import TrainConfig
from dips.training.recipes import baseline_config

SAMPLE = 20_000
"""Training interactions of the sample."""
LARGEST_SHARE = 0.1
"""Largest share of the users in the sample."""
SUGGESTED_SECONDS = 60.0
"""How long a training takes that is suggested in place of a long one."""
SHORT_WORK = 500_000
"""Work of fewer interactions, over all epochs, is not estimated: it takes seconds."""
LONG_SECONDS = 180.0
"""Training is called long from here on."""
FEWEST_USERS = 500
"""Fewer users are not suggested."""


def estimate_seconds(parts: Parts, configs: Sequence[TrainConfig]) -> float | None:
    """Return about how long the training of some runs takes, with their starts and baselines.

    A share of the users is trained on for two epochs, with the batch sizes of all users. The second
    one is timed, because the first one compiles. Policies that occur twice are timed once.

    Args:
        parts: Users for training, validation and test.
        configs: Settings of each run.

    Returns:
        Seconds; None for work that takes a few of them.
    """
    trainings = [one for config in configs for one in _trainings(parts, config)]
    if len(parts[0]) * sum(one.training.epochs for one in trainings) < SHORT_WORK:
        return None
    share = min(LARGEST_SHARE, SAMPLE / max(1, len(parts[0])))
    sample = (_some(parts[0], share), _some(parts[1], share), parts[2].select([]))
    scale = len(parts[0]) / max(1, len(sample[0]))
    seconds: dict[str, float] = {}
    total = 0.0
    for one in trainings:
        key = f"{one.sketch.policy} {one.policy_training.initial_policy}"
        if key not in seconds:
            seconds[key] = _second_epoch(sample, one) * scale
        total += seconds[key] * one.training.epochs
    return total


def _trainings(parts: Parts, config: TrainConfig) -> list[TrainConfig]:
    """Return resolved settings of a run from each of its starts, and of its baselines."""
    decided = resolved(parts[0], config)
    starts = [decided.but(initial_policy=name) for name in starts_of(decided)]
    names = decided.policy_training.baselines
    return starts + [resolved(parts[0], baseline_config(config, name)) for name in names]


def _some(users: Interactions, share: float) -> Interactions:
    """Return a share of the users, drawn with a fixed seed; at least two."""
    count = min(users.users, max(2, round(share * users.users)))
    chosen = np.random.default_rng(0).choice(users.users, count, replace=False)
    return users.select(sorted(chosen.tolist()))


def _second_epoch(parts: Parts, config: TrainConfig) -> float:
    """Return the seconds of the second epoch, in which the policy is trained."""
    short = config.but(
        epochs=2, patience=2, policy_warmup_epochs=0, policy_freeze_epochs=0, baselines=(),
        max_seconds=None, max_users=None,
    )  # fmt: skip
    ends: list[float] = []
    train_runs([(parts, short)], test=False, on_epoch=lambda report: ends.append(report.seconds))
    return ends[-1] - ends[0] if len(ends) > 1 else 0.0


def describe_estimate(seconds: float, users: int, setting: str) -> str:
    """Return one sentence on the time, and one on fewer users where it is long.

    Args:
        seconds: Of all users.
        users: Number of users.
        setting: How the number of users is limited, as it is typed.

    >>> describe_estimate(360, 6040, "--max-users ")
    'Training takes about 6 minutes. A first answer in about 1 minute: --max-users 1000'
    >>> describe_estimate(41, 943, "max_users=")
    'Training takes about 40 seconds.'
    """
    text = f"Training takes about {_rounded(seconds)}."
    fewer = users * SUGGESTED_SECONDS / max(seconds, 1e-9)
    power = 10 ** int(np.log10(max(1.0, fewer)))
    fewer = int(fewer / power) * power
    if seconds < LONG_SECONDS or fewer < FEWEST_USERS:
        return text
    return f"{text} A first answer in about 1 minute: {setting}{fewer}"


def _rounded(seconds: float) -> str:
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} seconds"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"
