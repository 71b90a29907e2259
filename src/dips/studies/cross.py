"""Cross two runs: score the recommender of each with the sketches of both policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dips.data.interactions import Interactions
from dips.errors import ConfigError
from dips.evaluation.comparison import UserSums, user_sums
from dips.evaluation.crossing import Combination, cross_scores, effect_shares, paired_effects
from dips.evaluation.metrics import primary_metric
from dips.evaluation.progressive import Scores
from dips.evaluation.transfer import SourcePolicy
from dips.studies.opened_runs import open_runs, requested_policy, run_labels
from dips.studies.progress import CountCallback


def cross(
    first: str | Path,
    second: str | Path,
    data: Interactions | None = None,
    *,
    device: str | None = "cpu",
    allow_plugins: bool = False,
) -> dict[str, Any]:
    """Score the recommenders of two runs with the sketches of both policies.

    Args:
        first: A run directory, for example of `last`.
        second: Another run directory, for example of `learned`.
        data: The users to score; by default the test users of `first`. Training and validation
            users of either run are left out.
        device: cpu or cuda; None: cuda if there is a GPU.
        allow_plugins: Whether users' own classes that the runs name are imported.

    Returns:
        A dictionary with `rows` (the metrics of each recommender with each policy's sketches),
        `effects` (paired differences, second minus first, with 95 % intervals) and `shares` (the
        parts of the difference that sketches and recommender make: means over both orders of
        changing them, Shapley values). `old` and `new` are the labels of first and second run.

    Raises:
        ConfigError: If both runs are the same, or if a policy keeps everything.
        RunError: If the runs have different items or tasks.
    """
    pair = (Path(first), Path(second))
    return cross_runs([pair], data=data, device=device, allow_plugins=allow_plugins)


def cross_runs(
    pairs: Sequence[tuple[Path, Path]],
    names: tuple[str, str] | None = None,
    data: Interactions | None = None,
    *,
    device: str | None = "cpu",
    allow_plugins: bool = False,
    on_progress: CountCallback = lambda done, total: None,
) -> dict[str, Any]:
    """Cross pairs of runs, one pair per split, and pool the paired differences over pairs.

    Args:
        pairs: First and second run of each split.
        names: Labels of the first and the second runs; by default from their policies.
        data: The users to score; by default the test users of each first run.
        device: cpu or cuda; None: cuda if there is a GPU.
        allow_plugins: Whether users' own classes that the runs name are imported.
        on_progress: Called after each pair.

    Returns:
        The dictionary that `cross` describes; metrics are means over splits.

    Raises:
        ConfigError: If both labels are the same.
    """
    first, second = names or run_labels(pairs[0])
    if first == second:
        raise ConfigError(f"{first} is named twice: give two runs")
    found: list[dict[Combination, Scores]] = []
    sums: dict[Combination, list[UserSums]] = {}
    kept: dict[str, list[str]] = {first: [], second: []}
    users = 0
    for pair in pairs:
        models, part, stream = open_runs(pair, data, device, allow_plugins=allow_plugins)
        runs = dict(zip((first, second), models, strict=True))
        policies = {name: SourcePolicy.of(trained) for name, trained in runs.items()}
        scores = cross_scores(runs, policies, stream)
        found.append(scores)
        users += part.users
        for name, trained in runs.items():
            kept[name].append(trained.policy_spec.name)
        ids = [part.user_id(user) for user in range(part.users)]
        for combination, one in scores.items():
            sums.setdefault(combination, []).append(user_sums(one, ids))
        on_progress(len(found), len(pairs))
    metric = primary_metric(found[0][first, first].metrics)
    effects = paired_effects(sums, first, second)
    return {
        "old": first,
        "new": second,
        "splits": len(pairs),
        "users": users,
        "metric": metric,
        "policies": dict(zip((first, second), map(requested_policy, pairs[0]), strict=True)),
        "kept_policies": kept,
        "rows": [
            {
                "recommender": recommender,
                "sketches": policy,
                **_means([scores[recommender, policy] for scores in found]),
            }
            for recommender, policy in sums
        ],
        "effects": effects,
        "shares": effect_shares(effects, metric),
    }


def _means(scores: Sequence[Scores]) -> Mapping[str, float]:
    """Return the mean of each metric over splits."""
    return {
        name: float(np.mean([one.metrics[name] for one in scores])) for name in scores[0].metrics
    }
