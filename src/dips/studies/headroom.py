"""Measure how far a run's sketches are from those of a hindsight oracle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dips.data.interactions import Interactions
from dips.errors import ConfigError, RunError
from dips.evaluation.headroom import (
    oracle_gain_intervals,
    score_against_oracle,
    share_of_oracle_gain,
)
from dips.evaluation.metrics import primary_metric
from dips.evaluation.settings import LOOKAHEAD
from dips.evaluation.transfer import SourcePolicy
from dips.model.trained_model import TrainedModel
from dips.stream.users import Stream
from dips.studies.opened_runs import open_runs, requested_policy, run_labels
from dips.studies.progress import CountCallback


def headroom(
    run: str | Path,
    data: Interactions | None = None,
    *,
    recommenders: Sequence[str | Path] = (),
    ahead: int = LOOKAHEAD,
    device: str | None = "cpu",
    allow_plugins: bool = False,
    on_progress: CountCallback = lambda done, total: None,
) -> dict[str, Any]:
    """Score the sketches of last-K, of a run's policy, and of a hindsight oracle.

    The oracle drops entries by the loss of the odd-numbered interactions among the next `ahead`.
    Only even-numbered interactions are scored, for all three.

    Args:
        run: A run directory.
        data: The users to score; by default the run's test users.
        recommenders: Further runs of the same size whose recommenders also predict from the
            sketches.
        ahead: How many interactions ahead the oracle sees.
        device: cpu or cuda; None: cuda if there is a GPU.
        allow_plugins: Whether users' own classes that the runs name are imported.
        on_progress: Called after each recommender.

    Returns:
        A dictionary with the run's facts and `rows`, one per recommender. A row has the metrics of
        `last`, `own` (the run's policy) and `oracle`. `lead` is the 95 % interval of the oracle's
        gain over last-K. `share` is the run's share of that gain; None where `lead` includes 0.

    Raises:
        ConfigError: If `ahead` is below 1.
        RunError: If runs differ in size, period, items or task.
    """
    if ahead < 1:
        raise ConfigError(f"--ahead is {ahead}: it must be at least 1")
    runs = [Path(directory) for directory in (run, *recommenders)]
    models, part, stream = open_runs(runs, data, device, allow_plugins=allow_plugins)
    own, rows = models[0], list[dict[str, Any]]()
    for trained, directory in zip(models, runs, strict=True):
        if (trained.size, trained.periods) != (own.size, own.periods):
            raise RunError(f"{directory} has sketches of another size or period than {run}")
    for name, trained in zip(run_labels(runs), models, strict=True):
        rows.append({"recommender": name, **_row(trained, SourcePolicy.of(own), stream, ahead)})
        on_progress(len(rows), len(runs))
    return {
        "run": str(run),
        "policy": requested_policy(runs[0]),
        "kept_policy": own.policy_spec.name,
        "size": own.size,
        "periods": list(own.periods),
        "users": part.users,
        "ahead": ahead,
        "metric": primary_metric(rows[0]["last"]),
        "rows": rows,
    }


def _row(target: TrainedModel, own: SourcePolicy, stream: Stream, ahead: int) -> dict[str, Any]:
    """Return metrics of last-K, the run's policy and the oracle, for one recommender."""
    scores = score_against_oracle(target, {"own": own}, stream, ahead)
    found: dict[str, Any] = {name: scores[name].metrics for name in ("last", "own", "oracle")}
    values = {metric: [found[name][metric] for name in found] for metric in found["last"]}
    shares = {metric: share_of_oracle_gain(metric, *three) for metric, three in values.items()}
    gains = oracle_gain_intervals(scores["oracle"], scores["last"])
    for metric, (low, high) in gains.items():
        if low <= 0 <= high:  # a share of a gain that may be zero says nothing
            shares[metric] = None
    return {**found, "lead": gains, "share": shares}
