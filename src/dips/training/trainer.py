"""Fit recommenders and policies to the training users: stacked runs, epoch by epoch.

`algorithm1.py` is the paper's Algorithm 1 line by line. Here the lines are in these functions:

| line     | function                                                                         |
|----------|----------------------------------------------------------------------------------|
| 2        | `fit`, below: the loop over epochs                                               |
| 3, 4     | `rollouts.py`: `TrainingRollouts.blocks` selects batches of users                |
| 5, 9, 15 | `rollouts.py`: `blocks`, or `traces` for whole epochs, both by `Rollout.advance` |
| 6 to 8   | `epoch.py`: the update of the recommenders                                       |
| 10 to 12 | `epoch.py`: the update of the policies                                           |
| 13       | no queue is stored: `credit/queue.py` sums over later decisions instead          |

Knows nothing about metrics or files: it is given `validate`, reports each epoch to `on_epoch`, and
calls `save` where it could be stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from dips.numerics.process_group import SINGLE_PROCESS, ProcessGroup
from dips.recommender.stacked import StackedRecommenders, StateDict
from dips.rollout.trace import Trace
from dips.stream.users import EventColumns
from dips.training.batches import TrainingBlock
from dips.training.config import TrainConfig
from dips.training.epoch import divergence_message, is_policy_trained, train_epoch
from dips.training.rollouts import Job, TraceSource, TrainingRollouts
from dips.training.state import Progress, TrainingState, start

__all__ = ["Progress", "StateCallback", "TrainingState", "Validate", "fit", "start", "train_epoch"]

Validate = Callable[[StackedRecommenders, Trace], list[float]]
"""From recommenders and a validation trace to one score per run; lower is better."""
StateCallback = Callable[[TrainingState], None]
"""Called with the training state: may show progress, or save a checkpoint."""
LR_RECOVERY = 1.5
"""Factor by which a reduced policy learning rate grows after an epoch that is not reverted."""
SAVE_SECONDS = 30.0
"""Least time between two checkpoints within an epoch."""
REPORT_SECONDS = 0.5
"""Least time between two reports of progress within an epoch."""


def fit(
    state: TrainingState,
    jobs: Sequence[Job],
    columns: EventColumns,
    validate: Validate,
    on_epoch: StateCallback = lambda state: None,
    save: StateCallback = lambda state: None,
    process_group: ProcessGroup = SINGLE_PROCESS,
    traces: TraceSource | None = None,
    on_batch: StateCallback = lambda state: None,
) -> None:
    """Train stacked runs in place; `state.best` holds the best epoch of each run.

    Training ends after the last epoch, when the patience of every run is exhausted, or when the
    time is over.

    Args:
        state: Parameters, optimizers and progress; a resumed state continues where it stopped.
        jobs: One per run. Runs of one policy, size and schedule stand next to each other.
        columns: Events of the data set.
        validate: Scores the validation users of all runs.
        on_epoch: Called after each epoch.
        save: Called after each epoch, and between batches every `SAVE_SECONDS`.
        process_group: Processes that train together. All take the same steps.
        traces: Where sketches come from; by default rollouts under the policies of the jobs.
        on_batch: Called between batches every `REPORT_SECONDS`; `progress.share` tells how far the
            epoch has come.
    """
    config, stack, progress = jobs[0].config, state.stack, state.progress
    traces = traces or TrainingRollouts(jobs, columns, process_group)
    training = None if traces.interleaved else _roll_out(state, traces, config)[0]
    lap_start = reported = saved = time.monotonic()

    def add_time() -> None:
        nonlocal lap_start
        progress.seconds += time.monotonic() - lap_start
        lap_start = time.monotonic()

    def after_batch(record: Callable[[], bool]) -> None:
        nonlocal reported, saved
        now = time.monotonic()
        if now - reported >= REPORT_SECONDS:
            reported = now
            add_time()
            on_batch(state)
        if now - saved >= SAVE_SECONDS and record():
            saved = now
            add_time()
            save(state)

    while progress.epoch < config.training.epochs and not _finished(progress, jobs):
        progress.epoch += 1
        if not progress.predictions:
            _copy_to(state.policy_before, state.policy_parameters())
        blocks: Iterable[TrainingBlock]
        if training is None:
            blocks = _interleaved_blocks(state, traces)
        else:
            blocks = [traces.block(training, stack.template)]
        losses = train_epoch(state, jobs, blocks, traces.refresh_table, after_batch, process_group)
        if all(progress.diverged):
            return
        progress.end_epoch()
        training, validation = _roll_out(state, traces, config)
        scores = validate(stack, validation)
        _keep_best(state, jobs, losses, scores)
        if _revert_worse_policies(state, jobs, scores):
            training, _ = _roll_out(state, traces, config)
        add_time()
        # All processes must agree on the time, or not all would stop in the same epoch.
        progress.seconds = process_group.broadcast_object(progress.seconds)
        save(state)
        saved = time.monotonic()
        on_epoch(state)


def _roll_out(
    state: TrainingState, traces: TraceSource, config: TrainConfig
) -> tuple[Trace | None, Trace]:
    """Return the training trace of the next epoch and the validation trace of the last one.

    Training users are rolled out anew every `resketch_epochs` epochs. Where an epoch is continued,
    they are rolled out with the parameters of its start.
    """
    at_rollout = state.models_with(state.rollout_parameters)
    if state.progress.predictions:
        return traces.traces(state.progress.epoch + 1, at_rollout, at_rollout)
    if state.progress.epoch % config.training.resketch_epochs == 0:
        _copy_to(state.rollout_parameters, state.parameters())
    current = state.models_with(state.parameters())
    return traces.traces(state.progress.epoch + 1, current, at_rollout)


def _interleaved_blocks(state: TrainingState, traces: TraceSource) -> Iterator[TrainingBlock]:
    """Yield the blocks of an epoch, each rolled out with the parameters at its start.

    A block that was interrupted is rolled out with the parameters that it had.
    """
    progress = state.progress
    at_rollout = state.models_with(state.rollout_parameters)
    blocks = traces.blocks(progress.epoch, *at_rollout, progress.user_batches_done)
    while True:
        if not progress.batches_done:
            _copy_to(state.rollout_parameters, state.parameters())
        block = next(blocks, None)
        if block is None:
            return
        yield block
        del block  # frees its trace before the next one is made


def _copy_to(target: StateDict, source: StateDict) -> None:
    for name, value in source.items():
        target[name].copy_(value)


def _keep_best(
    state: TrainingState, jobs: Sequence[Job], losses: Sequence[float], scores: Sequence[float]
) -> None:
    """Copy the parameters of runs with a better validation score; mark runs that diverged."""
    progress = state.progress
    for run, (job, loss, score) in enumerate(zip(jobs, losses, scores, strict=True)):
        if _stopped(progress, job, run, progress.epoch - 1):
            continue
        if not (math.isfinite(loss) and math.isfinite(score)):
            progress.diverged[run] = divergence_message(state, job, run)
        elif score < progress.best[run]:
            progress.best[run], progress.best_epoch[run] = score, progress.epoch
            for name, value in state.parameters().items():
                state.best[name][run] = value[run]
    progress.history.append(
        {"epoch": progress.epoch, "train_loss": list(losses), "valid": list(scores)}
    )


def _revert_worse_policies(
    state: TrainingState, jobs: Sequence[Job], scores: Sequence[float]
) -> bool:
    """Revert policies whose epoch made validation worse by more than `revert_tolerance`.

    Credit is a linear estimate: it gives a direction, not a step size. The recommender keeps its
    updates of the epoch, because they used sketches of the policy before it.

    Returns:
        Whether any policy was reverted.
    """
    progress, reverted = state.progress, False
    if not state.policy_before or not is_policy_trained(jobs[0].config, progress.epoch):
        return False
    for run, (job, score) in enumerate(zip(jobs, scores, strict=True)):
        tolerance = job.config.policy_training.revert_tolerance
        bound = progress.best[run] + tolerance * abs(progress.best[run])
        if math.isfinite(bound) and score > bound:
            state.revert_policy(run)
            reverted = True
        else:
            scale = progress.policy_lr_scale[run] * LR_RECOVERY
            progress.policy_lr_scale[run] = min(1.0, scale)
    return reverted


def _finished(progress: Progress, jobs: Sequence[Job]) -> bool:
    """Return whether every run has stopped, or the time is over."""
    limit = jobs[0].config.training.max_seconds
    if limit and progress.seconds >= limit and not progress.predictions:
        return True
    return all(_stopped(progress, job, run, progress.epoch) for run, job in enumerate(jobs))


def _stopped(progress: Progress, job: Job, run: int, epoch: int) -> bool:
    """Return whether a run had stopped after `epoch`; its stack may still go on."""
    waited = epoch - progress.best_epoch[run]
    return bool(progress.diverged[run]) or waited >= job.config.training.patience
