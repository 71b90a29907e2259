"""Session-based recommendation with a sketch of earlier sessions, as in the paper.

For each policy, size and fold a session model is trained on the sketches of that policy. The policy
itself is trained with NCF and refreshes after every session. The model without a sketch is GRU4Rec
on sessions; it is in the tables as `none`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dips.data.interactions import Interactions
from dips.data.splitting import Parts
from dips.errors import ConfigError, TrainingDiverged
from dips.evaluation.comparison import Cell
from dips.evaluation.progressive import Scores, evaluate
from dips.evaluation.transfer import SourcePolicy
from dips.policy.recency import KeepAll
from dips.recommender.registry import construct_recommender
from dips.recommender.session import LENGTH, SessionGRU
from dips.recommender.spectral_init import initialise_vectors
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.trace import Trace
from dips.sketch.selection import Greedy
from dips.stream.schedule import Schedule
from dips.stream.users import EventColumns, make_stream
from dips.studies.checks import device_of, recommender_spec, resolved, split
from dips.studies.compare import ComparisonPlan, RunKey, write_table
from dips.studies.policy_transfer import (
    CellScores,
    PolicyTransfer,
    TransferResult,
    largest_savings,
)
from dips.studies.progress import StudyCallback, StudyProgress
from dips.training import checkpoint
from dips.training.config import TrainConfig
from dips.training.rollouts import Job
from dips.training.sessions import Sessions, session_schedule, sessions
from dips.training.trainer import TrainingState, fit, start

PAPER: dict[str, Any] = {
    "claim": "A sketch makes session-based recommendation more than 20 % better, and DiPS needs "
    "50 % fewer items than reservoir sampling for the same Recall@20",
    "gain": 0.2,
    "fewer": 0.5,
}
NO_SKETCH = SourcePolicy(name="none", policy=KeepAll(), size=1, schedule=Schedule((LENGTH,)))
"""The cell without a sketch: the session model does not read it."""
SessionEpochCallback = Callable[[int], None]
"""Called with the number of finished epochs of a session model."""


def study_sessions(
    data: Interactions,
    plan: ComparisonPlan,
    target: TrainConfig,
    out: Path,
    *,
    source: str,
    command: str = "",
    on_progress: StudyCallback | None = None,
) -> TransferResult:
    """Train and score a session model with the sketches of every policy at every size.

    Sessions have `LENGTH` items, and sketches are refreshed after each session.

    Args:
        data: All users.
        plan: Policies, sizes, folds and settings of the source policies; size 0 is no sketch.
        target: Settings of the session model.
        out: Results directory; an interrupted study resumes there.
        source: Name of the data as the user gave it.
        command: The command that was typed, for the report.
        on_progress: Called with the progress of each phase.

    Raises:
        ConfigError: If no size is above 0, or if the data is split by time.
        RunError: If `out` holds other results.
    """
    sketched = replace(plan, sizes=[size for size in plan.sizes if size], every=[LENGTH])
    if not sketched.sizes:
        raise ConfigError("--sizes has no sketch: give a size of at least 1, for example 0,4")
    if target.training.split != "users":
        raise ConfigError("sessions need full histories: leave --split out")
    # These are for the source policies only.
    target = target.but(inner_loss=None, recency_decay=None, tie_embeddings=None)
    work = PolicyTransfer(data, sketched, out, source=source, on_progress=on_progress)
    work.check_settings("session", [target])
    policies = work.source_policies()
    without = [Cell("none", 0, LENGTH)] if 0 in plan.sizes else []
    keys = plan.runs([*without, *sketched.cells()])
    epochs = resolved(data, target).training.epochs
    total = len(keys) * epochs

    def compute(key: RunKey, done: int, place: Path) -> CellScores:
        def report(epoch: int) -> None:
            work.on_progress(StudyProgress("session models", done + epoch, total))

        config = target.but(seed=plan.seed, fold=key.fold, repeat=key.repeat)
        parts = split(data, config)
        without_sketch = replace(NO_SKETCH, seed=config.training.training_seed)
        source_policy = policies(key) if key.cell.size else without_sketch
        scores = score_sessions(parts, source_policy, config, place, report)
        return CellScores(source_policy.name, scores, parts[2])

    for place, key in enumerate(keys):
        work.score_cell(key, target.to_dict(), partial(compute, key, place * epochs))
    tables = work.tables()
    found = {
        "paper": PAPER,
        "saved": largest_savings(tables),
        "gains": relative_gains(tables.summary),
    }
    about = work.about("session", target, command)
    result = replace(tables, about={**about, "sizes": list(plan.sizes), **found})
    write_table(result.about["gains"], out / "gains.csv")
    result.write(out)
    return result


def score_sessions(
    parts: Parts,
    source_policy: SourcePolicy,
    config: TrainConfig,
    place: Path,
    on_epoch: SessionEpochCallback,
) -> Scores:
    """Train a session model on the sketches of a policy, and score it on the test users.

    Args:
        parts: Users for training, validation and test.
        source_policy: The policy that keeps the sketches.
        config: Settings of the session model.
        place: Directory of the checkpoint, which is resumed and removed at the end.
        on_epoch: Called after each epoch.

    Raises:
        TrainingDiverged: If training diverged.
    """
    train, valid, _ = parts
    config = resolved(train, config)
    device = device_of(config)
    columns = EventColumns.of(train, device, source_policy.sides)
    streams = [make_stream([part], columns) for part in parts]
    longest = max(stream.longest for stream in streams)
    source_policy = replace(source_policy, schedule=session_schedule(source_policy.size, longest))
    spec = recommender_spec(train, config)
    model = construct_recommender(SessionGRU, spec, config.training.training_seed)
    initialise_vectors(model, train, config.training.training_seed, device)
    jobs = [Job(train, valid, config)]
    state = start(jobs, [model], device)
    checkpoint.load(state, place)

    def validate(stack: StackedRecommenders, trace: Trace) -> list[float]:
        return [scores.objective for scores in evaluate(stack, trace)]

    def after_epoch(state: TrainingState) -> None:
        on_epoch(state.progress.epoch)

    def save(state: TrainingState) -> None:
        checkpoint.save(state, place)

    is_random = source_policy.policy.is_random or not isinstance(source_policy.selector, Greedy)
    traces = Sessions(streams[0], streams[1], source_policy.roll_out, is_random=is_random)
    fit(state, jobs, columns, validate, after_epoch, save, traces=traces)
    checkpoint.remove(place)
    if state.progress.diverged[0]:
        raise TrainingDiverged(state.progress.diverged[0])
    best = state.best_models()[0]
    return evaluate(best, sessions(source_policy.roll_out(streams[2])))[0]


def relative_gains(summary: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the relative gain of each cell over the model without a sketch, if it was trained."""
    without = {row["metric"]: row["mean"] for row in summary if row["policy"] == "none"}
    return [
        {
            "metric": row["metric"],
            "policy": row["policy"],
            "size": row["size"],
            "mean": row["mean"],
            "without": without[row["metric"]],
            "gain": row["mean"] / without[row["metric"]] - 1 if without[row["metric"]] else None,
        }
        for row in summary
        if row["policy"] != "none" and row["metric"] in without
    ]
