"""The paper's session-based recommendation: the session so far, and a sketch of what came before.

For each policy, size and seed a session model is trained on the sketches of that policy, which was
itself trained with NCF and refreshes with every session. Without a sketch it is GRU4Rec on sessions
alone, and stands in the tables as `none`.
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
from dips.recommender.registry import settings_of
from dips.recommender.session import LENGTH, SessionGRU
from dips.recommender.spectral_init import begin
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.trace import Trace
from dips.sketch.selection import Greedy
from dips.stream.schedule import Schedule
from dips.stream.users import Columns, make_stream
from dips.studies.checks import describe, device_of, fitted, split
from dips.studies.compare import Plan, Update, Watch, write_rows
from dips.studies.policy_transfer import Key, PolicyTransfer, Result, Scored, saved
from dips.training import checkpoint
from dips.training.config import TrainConfig
from dips.training.rollouts import Job
from dips.training.sessions import Sessions, in_time, sessions
from dips.training.trainer import TrainingState, fit, start

PAPER: dict[str, Any] = {
    "claim": "A sketch makes session-based recommendation more than 20 % better, and DiPS needs "
    "50 % fewer items than reservoir sampling for the same Recall@20",
    "gain": 0.2,
    "fewer": 0.5,
}
NOBODY = SourcePolicy(name="none", policy=KeepAll(), size=1, schedule=Schedule((LENGTH,)))
"""Stands for no sketch: what everybody keeps is not shown."""
Told = Callable[[int], None]
"""Called with the epochs that a model has learned."""


def study_sessions(
    data: Interactions,
    plan: Plan,
    reader: TrainConfig,
    out: Path,
    *,
    source: str,
    command: str = "",
    watch: Watch | None = None,
) -> Result:
    """Every policy of a plan at every size with a session model of the settings of `reader`.

    Sessions have LENGTH items, and the plan refreshes as often. A size of 0 is no sketch.
    """
    sketched = replace(plan, sizes=[size for size in plan.sizes if size], every=[LENGTH])
    if not sketched.sizes:
        raise ConfigError("sizes has no sketch in it: give one of at least 1, for example 0,4")
    if reader.split == "time":
        raise ConfigError("sessions are cut from whole histories: leave split = time out")
    reader = reader.but(recency_decay=-1, separate_input=-1)  # of the choosers alone
    work = PolicyTransfer(data, sketched, out, source=source, watch=watch)
    work.check("session", [reader])
    choose = work.choosers()
    bare = [Cell("none", 0, LENGTH)] if 0 in plan.sizes else []
    keys = [(cell, seed) for cell in [*bare, *sketched.cells()] for seed in plan.seeds]
    total = len(keys) * reader.epochs

    def compute(key: Key, done: int, place: Path) -> Scored:
        def told(epoch: int) -> None:
            work.watch(Update("session models", done + epoch, total))

        cell, seed = key
        parts = split(data, reader.but(seed=seed))
        source_policy = choose(key) if cell.size else replace(NOBODY, seed=seed)
        scores = score_sessions(parts, source_policy, reader.but(seed=seed), place, told)
        return Scored(source_policy.name, scores, parts[2])

    for place, key in enumerate(keys):
        work.cell(key, reader.to_dict(), partial(compute, key, place * reader.epochs))
    tables = work.tables()
    found = {"paper": PAPER, "saved": saved(tables), "gains": gains(tables.summary)}
    about = work.about("session", reader, command)
    result = replace(tables, about={**about, "sizes": list(plan.sizes), **found})
    write_rows(result.about["gains"], out / "gains.csv")
    result.write(out)
    return result


def score_sessions(
    parts: Parts, source_policy: SourcePolicy, config: TrainConfig, place: Path, told: Told
) -> Scores:
    """Train a session model on a policy's sketches, and score it on the users who test.

    Leaves a checkpoint after each epoch and goes on from it; at the end there is none.
    """
    train, valid, _ = parts
    config = fitted(train, config)
    device = device_of(config)
    columns = Columns.of(train, device, source_policy.sides)
    streams = [make_stream([part], columns) for part in parts]
    longest = max(stream.longest for stream in streams)
    source_policy = replace(source_policy, schedule=in_time(source_policy.size, longest))
    spec = describe(train, config)
    model = SessionGRU(
        **settings_of(spec, config.seed),
        repeat_feature=spec.repeat_feature,
        filter_sketch=spec.filter_sketch,
        cosine=spec.cosine,
    )
    begin(model, train, config.seed, device)
    jobs = [Job(train, valid, config)]
    fitting = start(jobs, [model], device)
    checkpoint.load(fitting, place)

    def validate(stack: StackedRecommenders, trace: Trace) -> list[float]:
        return [scores.headline for scores in evaluate(stack, trace)]

    def after_epoch(fitting: TrainingState) -> None:
        told(fitting.progress.epoch)

    def save(fitting: TrainingState) -> None:
        checkpoint.save(fitting, place)

    is_random = source_policy.policy.is_random or not isinstance(source_policy.selector, Greedy)
    sketching = Sessions(streams[0], streams[1], source_policy.walk, draws=is_random)
    fit(fitting, jobs, columns, validate, after_epoch, save, sketching=sketching)
    checkpoint.remove(place)
    if fitting.progress.diverged[0]:
        raise TrainingDiverged(fitting.progress.diverged[0])
    best = fitting.chosen()[0]
    return evaluate(best, sessions(source_policy.walk(streams[2])))[0]


def gains(summary: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """How much better each cell is than without a sketch, as a share, where that was tried."""
    bare = {row["metric"]: row["mean"] for row in summary if row["policy"] == "none"}
    return [
        {
            "metric": row["metric"],
            "policy": row["policy"],
            "size": row["size"],
            "mean": row["mean"],
            "without": bare[row["metric"]],
            "gain": row["mean"] / bare[row["metric"]] - 1 if bare[row["metric"]] else None,
        }
        for row in summary
        if row["policy"] != "none" and row["metric"] in bare
    ]
