"""Train runs and score each on its own validation and test users.

Composes `training` and `evaluation`. Knows nothing about files of results or the command line.
"""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dips.data.side_information import SideInformation
from dips.data.splitting import Parts, validation_halves
from dips.evaluation.metrics import primary_metric
from dips.evaluation.progressive import Scores, evaluate
from dips.evaluation.run_verdict import objective_of_users
from dips.model.trained_model import TrainedModel
from dips.numerics.freed_memory import keep_freed_memory
from dips.numerics.process_group import SINGLE_PROCESS, ProcessGroup
from dips.policy.base import Policy
from dips.policy.registry import PolicySpec, build_policy, learns
from dips.policy.settings import LEARNED, starts
from dips.policy.stacked import StackedPolicies
from dips.recommender.registry import RecommenderSpec, make_recommender
from dips.recommender.spectral_init import initialise_vectors
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.rollout import rollout
from dips.rollout.trace import Trace
from dips.sketch.selection import make_selector
from dips.stream.users import EventColumns, make_stream
from dips.studies.checks import (
    data_summary,
    device_of,
    policy_spec,
    recommender_spec,
    resolved,
    side_information_of,
)
from dips.studies.progress import (
    BASELINE,
    EpochCallback,
    EpochReport,
    TrainingCallback,
    TrainingReport,
)
from dips.studies.result import PolicyResult, RunResult
from dips.training import checkpoint
from dips.training.config import TrainConfig
from dips.training.distributed import partition_users
from dips.training.recipes import baseline_config
from dips.training.resolve import resolve
from dips.training.rollouts import Job, group_key, policy_of
from dips.training.trainer import TrainingState, fit, start

RunCallback = Callable[[int, RunResult], None]
"""Called with a run's place among the jobs and its result."""
STACK = {"cpu": 8, "cuda": 64}
"""Maximum number of runs that are stacked."""
LEARNING = (
    "user_batch", "update_interval", "user_lr", "lr_schedule", "policy_batch_size",
    "policy_warmup_epochs", "policy_freeze_epochs", "dropout", "residual", "predicted_score",
    "initial_policy", "queue", "credit", "discount", "dropped_candidates", "estimator",
)  # fmt: skip
"""Settings that stacked runs with a learned policy must share."""


def train_runs(
    jobs: Sequence[tuple[Parts, TrainConfig]],
    *,
    test: bool = True,
    on_epoch: EpochCallback = lambda report: None,
    on_progress: TrainingCallback = lambda report: None,
    on_result: RunCallback | None = None,
    directory: Path | None = None,
    resume: bool = False,
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> list[RunResult]:
    """Train and score runs over one data set; runs of the same shape are stacked.

    Args:
        jobs: Parts (train, valid, test) and settings of each run.
        test: Whether to score the test users.
        on_epoch: Called after each epoch of each stack.
        on_progress: Called after each epoch, and within epochs.
        on_result: Called with a run's place in `jobs` and its result, as soon as it is finished.
        directory: Where checkpoints are written after each epoch; each of several stacks has its
            own subdirectory. The caller removes it. Only the leading process needs one.
        resume: Whether to continue from the checkpoints in `directory`.
        process_group: The processes that share the users.

    Returns:
        One result per job, in the order of `jobs`.
    """

    def report(found: TrainingReport) -> None:
        on_progress(found)
        if isinstance(found, EpochReport):
            on_epoch(found)

    given = [config for _, config in jobs]
    decided = [resolve(config, data_summary(parts[0], config)) for parts, config in jobs]
    jobs = [(job[0], found.config) for job, found in zip(jobs, decided, strict=True)]
    device = device_of(jobs[0][1])
    all_sides = [side_information_of(parts[0], config) for parts, config in jobs]
    columns: dict[SideInformation, EventColumns] = {}
    results: dict[int, RunResult] = {}
    for stack in _stacks([config for _, config in jobs], device, all_sides):
        chosen, sides = [jobs[index] for index in stack], all_sides[stack[0]]
        unresolved = [
            (parts, given[index]) for index, (parts, _) in zip(stack, chosen, strict=True)
        ]
        if sides not in columns:
            columns[sides] = EventColumns.of(chosen[0][0][0], device, sides)
        checkpoints = directory
        if directory is not None and len(jobs) > 1:
            checkpoints = directory / _fingerprint([config for _, config in chosen])
        with keep_freed_memory():
            finished = _run_starts(
                chosen, unresolved, columns[sides], device, test, report, checkpoints, resume,
                process_group,
            )  # fmt: skip
        _add_baselines(finished, unresolved, test, report, checkpoints, resume, process_group)
        for result in finished:
            result.judge(device)
        for index, result in zip(stack, finished, strict=True):
            result.config, result.resolved = given[index], decided[index]
            results[index] = result
            if on_result is not None:
                on_result(index, result)
    return [results[index] for index in range(len(jobs))]


def _run_starts(
    jobs: Sequence[tuple[Parts, TrainConfig]],
    unresolved: Sequence[tuple[Parts, TrainConfig]],
    columns: EventColumns,
    device: str,
    test: bool,
    on_progress: TrainingCallback,
    directory: Path | None,
    resume: bool,
    process_group: ProcessGroup,
) -> list[RunResult]:
    """Train stacked runs from each of their initial policies, and keep the better start of each.

    Settings that were left open are decided for each start.

    Args:
        jobs: Parts and resolved settings of each run.
        unresolved: The same with the settings as they were given.
        columns: Events of the data set.
        device: Where to train.
        test: Whether to score the test users.
        on_progress: Called within epochs and after each.
        directory: Where checkpoints are written.
        resume: Whether to continue from them.
        process_group: The processes that share the users.

    Returns:
        One result per run.
    """
    initial = starts_of(jobs[0][1])
    trainings = len(initial) + len(_baselines_of([config for _, config in jobs]))

    def report(found: TrainingReport, index: int = 0) -> None:
        before = index * found.epochs
        found = replace(found, done=before + found.done, total=trainings * found.epochs)
        if len(initial) > 1:
            found = replace(
                found, role=f"start at {initial[index]}", epoch=before + found.epoch,
                epochs=len(initial) * found.epochs,
            )  # fmt: skip
        on_progress(found)

    if len(initial) == 1:
        return _run_stack(jobs, columns, device, test, report, directory, resume, process_group)
    finished: list[RunResult] = []
    for index, start_name in enumerate(initial):
        from_start = [
            (parts, resolved(parts[0], config.but(initial_policy=start_name)))
            for parts, config in unresolved
        ]
        place = directory
        if directory is not None and finished:
            place = checkpoint.of_start(directory, start_name)
        results = _run_stack(
            from_start,
            columns,
            device,
            test,
            partial(report, index=index),
            place,
            resume,
            process_group,
        )
        finished = [
            before.or_better(result) for before, result in zip(finished, results, strict=True)
        ] if finished else results  # fmt: skip
    return finished


def starts_of(config: TrainConfig) -> tuple[str, ...]:
    """Return the initial policies from which a run with resolved settings is trained."""
    initial = config.policy_training.initial_policy
    return starts(initial) if config.sketch.policy == LEARNED else (initial,)


def _add_baselines(
    results: Sequence[RunResult],
    jobs: Sequence[tuple[Parts, TrainConfig]],
    test: bool,
    on_progress: TrainingCallback,
    directory: Path | None,
    resume: bool,
    process_group: ProcessGroup,
) -> None:
    """Train the baselines of each run, with the same effort, and add them to its result.

    Each baseline is trained for all runs at once, one baseline after the other.
    """
    place = None if directory is None else directory / "baseline"
    names = _baselines_of([result.config for result in results])
    before = len(starts_of(results[0].config))

    def report(found: TrainingReport, index: int) -> None:
        done, total = (before + index) * found.epochs, (before + len(names)) * found.epochs
        on_progress(replace(found, role=BASELINE, done=done + found.done, total=total))

    for index, name in enumerate(names):
        runs = [
            (result, (parts, baseline_config(config, name)))
            for result, (parts, config) in zip(results, jobs, strict=True)
            if name in result.config.policy_training.baselines
        ]
        own = None if place is None else place / name
        baselines = train_runs(
            [job for _, job in runs],
            test=test,
            on_progress=partial(report, index=index),
            directory=own,
            resume=resume,
            process_group=process_group,
        )
        for (result, _), baseline in zip(runs, baselines, strict=True):
            result.add_baseline(baseline)
    if place is not None:
        shutil.rmtree(place, ignore_errors=True)


def _baselines_of(configs: Sequence[TrainConfig]) -> list[str]:
    """Return the baselines of stacked runs with resolved settings, each once."""
    return list(
        dict.fromkeys(name for config in configs for name in config.policy_training.baselines)
    )


def _fingerprint(configs: Sequence[TrainConfig]) -> str:
    text = json.dumps([config.to_dict() for config in configs])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _stacks(
    configs: Sequence[TrainConfig], device: str, sides: Sequence[SideInformation] | None = None
) -> list[list[int]]:
    """Return the runs of each stack, by index.

    Stacked runs have the same shape and share their events, so also the encoding of side
    information. Runs that share a rollout stand next to each other.
    """
    shapes: dict[tuple[object, ...], list[int]] = {}
    for index, config in enumerate(configs):
        optimisation = config.training
        shape = (
            replace(config.model, inner_lr=0.0, dropout=0.0),  # runs of a stack may differ in these
            config.sketch.size, optimisation.resketch_epochs, optimisation.epochs,
            optimisation.batch_size, optimisation.max_seconds, optimisation.lr_schedule,
            optimisation.user_lr is None, policy_of(config).keeps_all, _learning_shape(config),
            None if sides is None else sides[index],
        )  # fmt: skip
        shapes.setdefault(shape, []).append(index)
    limit = STACK["cuda" if device.startswith("cuda") else "cpu"]
    stacks = []
    for same in shapes.values():
        rollouts = list(dict.fromkeys(group_key(configs[index]) for index in same))
        same.sort(key=lambda index: rollouts.index(group_key(configs[index])))
        stacks += [same[low : low + limit] for low in range(0, len(same), limit)]
    return stacks


def _learning_shape(config: TrainConfig) -> tuple[object, ...]:
    """Return the settings that runs with a learned policy or live rollouts must share."""
    if not (
        learns(policy_of(config)) or config.training.user_batch or config.training.update_interval
    ):
        return ()
    return (*group_key(config), *(config[name] for name in LEARNING))


class StartedStack(NamedTuple):
    """Stacked runs before training."""

    specs: list[RecommenderSpec]
    policy_specs: list[PolicySpec]
    policies: list[Policy]
    work: list[Job]
    """Training users, and the validation users that select the model."""
    state: TrainingState


def start_stack(jobs: Sequence[tuple[Parts, TrainConfig]], device: str) -> StartedStack:
    """Return stacked runs with initial parameters.

    Args:
        jobs: Parts and resolved settings of each run; all of one shape.
        device: Where to train.
    """
    specs = [recommender_spec(parts[0], config) for parts, config in jobs]
    models = [
        make_recommender(spec, job[1].training.training_seed)
        for spec, job in zip(specs, jobs, strict=True)
    ]
    for model, (parts, config) in zip(models, jobs, strict=True):
        initialise_vectors(model, parts[0], config.training.training_seed, device)
    work = [
        Job(parts[0], parts[1].select(validation_halves(parts[1].users).selection), config)
        for parts, config in jobs
    ]
    shapes = [policy_spec(parts[0], config) for parts, config in jobs]
    policies = [
        build_policy(shape, job[1].training.training_seed)
        for shape, job in zip(shapes, jobs, strict=True)
    ]
    return StartedStack(specs, shapes, policies, work, start(work, models, device, policies))


def _run_stack(
    jobs: Sequence[tuple[Parts, TrainConfig]],
    columns: EventColumns,
    device: str,
    test: bool,
    on_progress: TrainingCallback,
    directory: Path | None,
    resume: bool,
    process_group: ProcessGroup,
) -> list[RunResult]:
    started = start_stack(jobs, device)
    specs, work, state = started.specs, started.work, started.state
    if directory is not None and resume:
        checkpoint.load(state, directory)
    state.synchronise(process_group)
    low, high = [spec.low for spec in specs], [spec.high for spec in specs]

    def validate(stack: StackedRecommenders, trace: Trace) -> list[float]:
        found = evaluate(stack, trace, low=low, high=high, process_group=process_group)
        return [scores.objective for scores in found]

    def after_epoch(state: TrainingState) -> None:
        on_progress(_epoch_report(state, work, specs))

    def after_batch(state: TrainingState) -> None:
        on_progress(_report_within_epoch(state, work))

    def save(state: TrainingState) -> None:
        if directory is not None:
            checkpoint.save(state, directory)

    fit(
        state, work, columns, validate, after_epoch, save, process_group, on_batch=after_batch
    )  # fmt: skip
    best, learned = state.best_models()
    scores = _score_all(
        best, learned, jobs, (1, 2) if test else (1,), columns, low, high, process_group
    )
    results = []
    for run, (parts, config) in enumerate(jobs):
        policy = started.policies[run] if learned is None else learned.one(run)
        assert isinstance(policy, Policy)
        trained = TrainedModel(
            spec=specs[run],
            recommender=best.one(run),
            item_ids=parts[0].item_ids,
            policy_spec=started.policy_specs[run],
            policy=policy,
            periods=config.sketch.schedule.periods,
            selection=config.sketch.selection,
            seed=config.training.training_seed,
            rating_range=None if config.model.implicit else parts[0].rating_range(),
        )
        own = None
        if not state.progress.diverged[run]:
            own = PolicyResult(
                name=config.sketch.policy,
                trained=trained,
                best_epoch=state.progress.best_epoch[run],
                valid=scores[run][0],
                test=scores[run][1] if test else None,
                selection_loss=objective_of_users(
                    scores[run][0], validation_halves(parts[1].users).selection
                ),
            )
        results.append(_run_result(state, own, specs[run], run, jobs[run], scores[run]))
    return results


def _score_all(
    best: StackedRecommenders,
    learned: StackedPolicies | None,
    jobs: Sequence[tuple[Parts, TrainConfig]],
    parts: Sequence[int],
    columns: EventColumns,
    low: Sequence[float],
    high: Sequence[float],
    process_group: ProcessGroup,
) -> list[list[Scores]]:
    """Score every run on the given parts; runs that share a rollout are rolled out together."""
    scores: list[list[Scores]] = [[] for _ in jobs]
    keys = [group_key(config) for _, config in jobs]
    for key in dict.fromkeys(keys):
        runs = [run for run, other in enumerate(keys) if other == key] * len(parts)
        which = [part for part in parts for _ in range(len(runs) // len(parts))]
        config, stack = jobs[runs[0]][1], best.select(runs)
        pairs = list(zip(runs, which, strict=True))
        users_of_all_ranks = make_stream([jobs[run][0][part] for run, part in pairs], columns)
        stream = partition_users(process_group).local_users(users_of_all_ranks)
        trace = rollout(
            stream,
            policy_of(config) if learned is None else learned.select(runs),
            size=config.sketch.size,
            schedule=config.sketch.schedule,
            keys=stream.keys([jobs[run][1].training.training_seed for run in runs]),
            recommenders=stack,
            selector=make_selector(config.sketch.selection),
        )
        made = evaluate(
            stack,
            trace,
            low=[low[run] for run in runs],
            high=[high[run] for run in runs],
            process_group=process_group,
        )
        for run, found in zip(runs, made, strict=True):
            scores[run].append(found)
    return scores


def _epoch_report(
    state: TrainingState, work: Sequence[Job], specs: Sequence[RecommenderSpec]
) -> EpochReport:
    last = state.progress.history[-1]
    return EpochReport(
        **_progress_of(state, work, state.progress.epoch),
        train_loss=[
            _in_unit_of_data(loss, spec)
            for loss, spec in zip(last["train_loss"], specs, strict=True)
        ],
        valid=last["valid"],
    )


def _report_within_epoch(state: TrainingState, work: Sequence[Job]) -> TrainingReport:
    progress = state.progress
    done = progress.epoch - 1 + progress.share
    return TrainingReport(**_progress_of(state, work, done))


def _progress_of(state: TrainingState, work: Sequence[Job], done: float) -> dict[str, Any]:
    """Return what all reports have in common, with `done` epochs done."""
    seconds = state.progress.seconds
    epochs = work[0].config.training.epochs
    interactions = sum(len(job.train) for job in work) * done
    return {
        "runs": len(work),
        "epoch": state.progress.epoch,
        "epochs": epochs,
        "done": done,
        "total": epochs,
        "seconds": seconds,
        "interactions_per_second": interactions / max(seconds, 1e-9),
    }


def _in_unit_of_data(loss: float, spec: RecommenderSpec) -> float:
    """Return a training loss; a squared error in the squared unit of the ratings."""
    return loss * spec.rating_spread**2


def _run_result(
    state: TrainingState,
    own: PolicyResult | None,
    spec: RecommenderSpec,
    run: int,
    job: tuple[Parts, TrainConfig],
    scores: Sequence[Scores],
) -> RunResult:
    parts, config = job
    epochs = min(state.progress.epoch, state.progress.best_epoch[run] + config.training.patience)
    history = [
        {
            "epoch": line["epoch"],
            "train_loss": _in_unit_of_data(line["train_loss"][run], spec),
            "valid": abs(line["valid"][run]),  # recall is kept negated: lower is better
            "metric": primary_metric(scores[0].metrics),
        }
        for line in state.progress.history[:epochs]
    ]
    return RunResult(
        config=config,
        parts=parts,
        own=own,
        epochs=epochs,
        all_epochs=state.progress.epoch,
        seconds=state.progress.seconds / len(state.progress.best),
        history=history,
        peak_memory=_peak_memory(state.steps.device),
        error=state.progress.diverged[run],
    )


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
