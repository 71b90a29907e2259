"""Experiments: split the users, fit a stack of runs, score each on its own test users, once.

Composes training and evaluation, which do not know each other. Knows nothing of the command line.
"""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from dips.data.side_information import SideInformation
from dips.data.splitting import Parts
from dips.evaluation.metrics import headline
from dips.evaluation.progressive import Scores, evaluate
from dips.model.trained_model import TrainedModel
from dips.numerics.process_group import SINGLE_PROCESS, ProcessGroup
from dips.policy.base import Policy
from dips.policy.registry import build_policy, learns
from dips.policy.stacked import StackedPolicies
from dips.recommender.registry import make_recommender
from dips.recommender.spectral_init import begin
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.rollout import rollout
from dips.rollout.trace import Trace
from dips.sketch.selection import selector_named
from dips.stream.users import Columns, make_stream
from dips.studies.checks import describe, describe_policy, device_of, fitted, sides_of
from dips.studies.result import Done, Moment, RunResult, Watch
from dips.training import checkpoint
from dips.training.config import TrainConfig
from dips.training.distributed import shard_of
from dips.training.recipes import baseline_config
from dips.training.rollouts import Job, group_key, policy_of
from dips.training.trainer import TrainingState, fit, start

STACK = {"cpu": 8, "cuda": 64}
"""Most runs that are trained side by side."""
LEARNING = (
    "users", "stretch", "user_lr", "lr_schedule", "policy_batch_size", "policy_warmup_epochs", "policy_freeze_epochs",
    "dropout", "residual", "predicted_score", "queue", "credit", "discount", "dropped_candidates", "estimator",
)  # fmt: skip
"""Settings in which runs that learn a policy side by side must agree."""


def run(
    jobs: Sequence[tuple[Parts, TrainConfig]],
    *,
    test: bool = True,
    watch: Watch | None = None,
    done: Done | None = None,
    directory: Path | None = None,
    resume: bool = False,
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> list[RunResult]:
    """Train and score runs over one dataset, as many side by side as the device holds.

    Results come in the order of the jobs; `done` is told of each as soon as it is there. With a
    directory each epoch leaves a checkpoint there, of several stacks each in a folder of its own,
    and `resume` goes on from it; who gave the directory removes it. In a process_group only the leader needs
    a directory.
    """
    given = [config for _, config in jobs]
    jobs = [(parts, fitted(parts[0], config)) for parts, config in jobs]
    device = device_of(jobs[0][1])
    columns: dict[SideInformation, Columns] = {}
    outcomes: dict[int, RunResult] = {}
    for stack in _stacks([config for _, config in jobs], device):
        chosen = [jobs[index] for index in stack]
        train, sides = chosen[0][0][0], sides_of(chosen[0][0][0], chosen[0][1])
        if sides not in columns:
            columns[sides] = Columns.of(train, device, sides)
        place = directory
        if directory is not None and len(jobs) > 1:
            place = directory / _fingerprint([config for _, config in chosen])
        finished = _run_stack(
            chosen, columns[sides], device, test, watch, place, resume, process_group
        )
        asked = [(jobs[index][0], given[index]) for index in stack]
        _meet_rivals(finished, asked, test, watch, place, resume, process_group)
        for index, outcome in zip(stack, finished, strict=True):
            outcome.config, decided = given[index], vars(jobs[index][1])
            outcome.fitted = {n: v for n, v in decided.items() if v != getattr(given[index], n)}
            outcomes[index] = outcome
            if done is not None:
                done(index, outcome)
    return [outcomes[index] for index in range(len(jobs))]


def _meet_rivals(
    outcomes: Sequence[RunResult],
    jobs: Sequence[tuple[Parts, TrainConfig]],
    test: bool,
    watch: Watch | None,
    directory: Path | None,
    resume: bool,
    process_group: ProcessGroup,
) -> None:
    """Train the rivals of each run as well as they can be; the best on validation stays.

    One rival after the other, for all runs: a run alone has no use for runs side by side.
    """
    place = None if directory is None else directory / "baseline"

    def told(moment: Moment) -> None:
        if watch is not None:
            watch(replace(moment, baseline=True))

    names = dict.fromkeys(name for outcome in outcomes for name in outcome.config.baselines)
    for name in names:  # as the data has them
        met = [
            (outcome, (parts, baseline_config(config, name, implicit_data=not parts[0].explicit)))
            for outcome, (parts, config) in zip(outcomes, jobs, strict=True)
            if name in outcome.config.baselines
        ]
        own = None if place is None else place / name
        twins = [job for _, job in met]
        baselines = run(
            twins, test=test, watch=told, directory=own, resume=resume, process_group=process_group
        )
        for (outcome, _), baseline in zip(met, baselines, strict=True):
            outcome.meet(baseline)
    if place is not None:
        shutil.rmtree(place, ignore_errors=True)


def _fingerprint(configs: Sequence[TrainConfig]) -> str:
    text = json.dumps([config.to_dict() for config in configs])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _stacks(configs: Sequence[TrainConfig], device: str) -> list[list[int]]:
    """Which runs go side by side: those of one shape, runs that share a walk next to each other."""
    shapes: dict[tuple[object, ...], list[int]] = {}
    for index, config in enumerate(configs):
        shape = (
            config.recommender, config.loss, config.negatives, config.task, config.dim,
            config.inner_steps, config.repeat_feature, config.recency_decay, config.separate_input,
            config.filter_sketch, config.cosine,
            config.prior_penalty, config.resketch_epochs, config.epochs, config.batch, config.max_seconds,
            config.size, config.lr_schedule, config.user_lr > 0, policy_of(config).keeps_all,
            config.side, _alone(config),
        )  # fmt: skip
        shapes.setdefault(shape, []).append(index)
    limit = STACK["cuda" if device.startswith("cuda") else "cpu"]
    stacks = []
    for same in shapes.values():
        walks = list(dict.fromkeys(group_key(configs[index]) for index in same))
        same.sort(key=lambda index: walks.index(group_key(configs[index])))
        stacks += [same[low : low + limit] for low in range(0, len(same), limit)]
    return stacks


def _alone(config: TrainConfig) -> tuple[object, ...]:
    """Runs that learn a policy or walk live go side by side with their like only."""
    if not (learns(policy_of(config)) or config.users or config.stretch):
        return ()
    return (*group_key(config), *(getattr(config, name) for name in LEARNING))


def _run_stack(
    jobs: Sequence[tuple[Parts, TrainConfig]],
    columns: Columns,
    device: str,
    test: bool,
    watch: Watch | None,
    directory: Path | None,
    resume: bool,
    process_group: ProcessGroup,
) -> list[RunResult]:
    specs = [describe(parts[0], config) for parts, config in jobs]
    models = [make_recommender(spec, job[1].seed) for spec, job in zip(specs, jobs, strict=True)]
    for model, (parts, config) in zip(models, jobs, strict=True):
        begin(model, parts[0], config.seed, device)
    work = [Job(parts[0], parts[1], config) for parts, config in jobs]
    shapes = [describe_policy(parts[0], config) for parts, config in jobs]
    policies = [build_policy(shape, job[1].seed) for shape, job in zip(shapes, jobs, strict=True)]
    fitting = start(work, models, device, policies)
    if directory is not None and resume:
        checkpoint.load(fitting, directory)
    fitting.align(process_group)
    low, high = specs[0].low, specs[0].high

    def validate(stack: StackedRecommenders, trace: Trace) -> list[float]:
        found = evaluate(stack, trace, low=low, high=high, process_group=process_group)
        return [scores.headline for scores in found]

    def after_epoch(fitting: TrainingState) -> None:
        if watch is not None:
            watch(_moment(fitting, work))

    def save(fitting: TrainingState) -> None:
        if directory is not None:
            checkpoint.save(fitting, directory)

    fit(fitting, work, columns, validate, after_epoch, save, process_group)
    best, learned = fitting.chosen()
    scores = _score_all(
        best, learned, jobs, (1, 2) if test else (1,), columns, low, high, process_group
    )
    outcomes = []
    for run, (parts, config) in enumerate(jobs):
        policy = policies[run] if learned is None else learned.one(run)
        assert isinstance(policy, Policy)
        trained = TrainedModel(
            spec=specs[run],
            recommender=best.one(run),
            item_ids=parts[0].item_ids,
            policy_spec=shapes[run],
            policy=policy,
            periods=config.schedule.periods,
            choice=config.choice,
            seed=config.seed,
        )
        outcomes.append(_outcome(fitting, trained, run, jobs[run], scores[run]))
    return outcomes


def _score_all(
    best: StackedRecommenders,
    learned: StackedPolicies | None,
    jobs: Sequence[tuple[Parts, TrainConfig]],
    parts: Sequence[int],
    columns: Columns,
    low: float,
    high: float,
    process_group: ProcessGroup,
) -> list[list[Scores]]:
    """Scores of every run on these of its parts: one walk for all runs that can share it."""
    scores: list[list[Scores]] = [[] for _ in jobs]
    keys = [group_key(config) for _, config in jobs]
    for key in dict.fromkeys(keys):
        runs = [run for run, other in enumerate(keys) if other == key] * len(parts)
        which = [part for part in parts for _ in range(len(runs) // len(parts))]
        config, stack = jobs[runs[0]][1], best.select(runs)
        pairs = list(zip(runs, which, strict=True))
        everyone = make_stream([jobs[run][0][part] for run, part in pairs], columns)
        stream = shard_of(process_group).own(everyone)
        trace = rollout(
            stream,
            policy_of(config) if learned is None else learned.select(runs),
            size=config.size,
            schedule=config.schedule,
            keys=stream.keys([jobs[run][1].seed for run in runs]),
            recommenders=stack,
            selector=selector_named(config.choice),
        )
        made = evaluate(stack, trace, low=low, high=high, process_group=process_group)
        for run, found in zip(runs, made, strict=True):
            scores[run].append(found)
    return scores


def _moment(fitting: TrainingState, work: Sequence[Job]) -> Moment:
    progress, last = fitting.progress, fitting.progress.history[-1]
    done = sum(len(job.train) for job in work) * progress.epoch
    return Moment(
        runs=len(work),
        epoch=progress.epoch,
        epochs=work[0].config.epochs,
        seconds=progress.seconds,
        interactions_per_second=done / max(progress.seconds, 1e-9),
        train_loss=last["train_loss"],
        valid=last["valid"],
    )


def _outcome(
    fitting: TrainingState,
    trained: TrainedModel,
    run: int,
    job: tuple[Parts, TrainConfig],
    scores: Sequence[Scores],
) -> RunResult:
    parts, config = job
    error = fitting.progress.diverged[run]
    epochs = min(fitting.progress.epoch, fitting.progress.best_epoch[run] + config.patience)
    valid = {} if error else scores[0].metrics
    history = [
        {
            "epoch": line["epoch"],
            "train_loss": line["train_loss"][run],
            "valid": abs(line["valid"][run]),  # recall is kept negated: lower is better
            "metric": headline(scores[0].metrics),
        }
        for line in fitting.progress.history[:epochs]
    ]
    return RunResult(
        config=config,
        trained=trained,
        parts=parts,
        epochs=epochs,
        best_epoch=fitting.progress.best_epoch[run],
        seconds=fitting.progress.seconds / len(fitting.progress.best),
        history=history,
        valid=valid,
        test=scores[1] if len(scores) > 1 and not error else None,
        peak_memory=_peak_memory(fitting.steps.device),
        error=error,
    )


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
