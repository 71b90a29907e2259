"""Fit recommenders and policies to the users who train: a stack of runs, epoch by epoch.

Reads like Algorithm 1 of the paper: users walk, the recommender learns from its predictions, the
policy from what its choices did to them. Knows nothing of metrics or files: it is given
`validate`, reports each epoch to `watch`, and calls `save` where it could be stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence

from dips.numerics.process_group import SINGLE_PROCESS, ProcessGroup
from dips.recommender.stacked import StackedRecommenders, StateDict
from dips.rollout.trace import Trace
from dips.stream.users import EventColumns
from dips.training.batches import Block
from dips.training.epoch import awake, diverged, learn_epoch
from dips.training.rollouts import Job, Sketching, TrainingRollouts
from dips.training.state import Progress, TrainingState, start

__all__ = ["Progress", "TrainingState", "Validate", "Watch", "fit", "learn_epoch", "start"]

Validate = Callable[[StackedRecommenders, Trace], list[float]]
"""Scores of all runs on a validation trace; lower is better."""
Watch = Callable[[TrainingState], None]
"""Called after each epoch: may draw a bar, or save a checkpoint."""
RECOVERY = 1.5
"""After an epoch that is not undone a policy goes on so much faster, up to its own rate."""
SAVE_SECONDS = 30.0
"""Within an epoch save no more often than this."""


def fit(
    fitting: TrainingState,
    jobs: Sequence[Job],
    columns: EventColumns,
    validate: Validate,
    watch: Watch = lambda fitting: None,
    save: Watch = lambda fitting: None,
    process_group: ProcessGroup = SINGLE_PROCESS,
    sketching: Sketching | None = None,
) -> None:
    """Train until the epochs are over, patience or time runs out; the best epoch of each run stays.

    Runs of one policy, size and schedule stand next to each other in `jobs`. `save` is called after
    each epoch, and where users walk live, now and then after a company of them. A process_group of several
    processes trains one fit: all begin with the leader's, and all take the same steps. What is read
    are the sketches of the settings' policies, unless `sketching` brings others.
    """
    config, stack, progress = jobs[0].config, fitting.stack, fitting.progress
    walks = sketching or TrainingRollouts(jobs, columns, process_group)
    training = None if walks.live else _walk(fitting, walks, config.training.resketch_epochs)[0]
    began = time.monotonic()

    def lap() -> None:
        nonlocal began
        progress.seconds += time.monotonic() - began
        began = time.monotonic()

    def pause() -> None:
        if walks.live and time.monotonic() - began >= SAVE_SECONDS:
            lap()
            save(fitting)

    while progress.epoch < config.training.epochs and not _finished(progress, jobs):
        progress.epoch += 1
        blocks: Iterable[Block]
        if training is None:
            done = progress.user_batches
            blocks = walks.blocks(progress.epoch, stack, fitting.policies, done)
        else:
            blocks = [walks.block(training, stack.template)]
        losses = learn_epoch(fitting, jobs, blocks, walks.clock, pause, process_group)
        if all(progress.diverged):
            return
        before = {name: value.clone() for name, value in fitting.walked.items() if _moves(name)}
        training, validation = _walk(fitting, walks, config.training.resketch_epochs)
        scores = validate(stack, validation)
        _remember(fitting, jobs, losses, scores)
        if _undone(fitting, jobs, scores, before):
            training, _ = _walk(fitting, walks, config.training.resketch_epochs)
        progress.user_batches, progress.taken, progress.total = 0, [], []
        lap()
        progress.seconds = process_group.broadcast_object(progress.seconds)  # else not all would stop in time
        save(fitting)
        watch(fitting)


def _walk(
    fitting: TrainingState, walks: Sketching, resketch_epochs: int
) -> tuple[Trace | None, Trace]:
    """Sketches for the next epoch and for validating the last; training's every `resketch_epochs`."""
    if fitting.progress.epoch % resketch_epochs == 0:
        for name, value in fitting.parameters().items():
            fitting.walked[name].copy_(value)
    now, walked = fitting.players(fitting.parameters()), fitting.players(fitting.walked)
    return walks.sketches(fitting.progress.epoch + 1, now, walked)


def _remember(
    fitting: TrainingState, jobs: Sequence[Job], losses: Sequence[float], scores: Sequence[float]
) -> None:
    """Keep the best parameters of each run, and note the ones that diverged."""
    progress = fitting.progress
    for run, (job, loss, score) in enumerate(zip(jobs, losses, scores, strict=True)):
        if _stopped(progress, job, run, progress.epoch - 1):
            continue
        if not (math.isfinite(loss) and math.isfinite(score)):
            progress.diverged[run] = diverged(fitting, job, run)
        elif score < progress.best[run]:
            progress.best[run], progress.best_epoch[run] = score, progress.epoch
            for name, value in fitting.parameters().items():
                fitting.best[name][run] = value[run]
    progress.history.append(
        {"epoch": progress.epoch, "train_loss": list(losses), "valid": list(scores)}
    )


def _undone(
    fitting: TrainingState, jobs: Sequence[Job], scores: Sequence[float], before: StateDict
) -> bool:
    """Undo the steps of policies that made validation much worse than it has been; whether any.

    Credit is a linear estimate: it says where to go, not how far. The recommender keeps what it
    learned in the epoch, because it learned from the sketches of the policy `before`.
    """
    progress, again = fitting.progress, False
    if not before or not awake(jobs[0].config, progress.epoch):
        return False
    for run, (job, score) in enumerate(zip(jobs, scores, strict=True)):
        bound = progress.best[run] + job.config.policy_training.revert_tolerance * abs(progress.best[run])
        if math.isfinite(bound) and score > bound:
            fitting.undo(run, before)
            again = True
        else:
            progress.ease[run] = min(1.0, progress.ease[run] * RECOVERY)
    return again


def _moves(name: str) -> bool:
    return name.startswith("policy.")


def _finished(progress: Progress, jobs: Sequence[Job]) -> bool:
    """Whether every run has stopped getting better, or the time is up."""
    limit = jobs[0].config.training.max_seconds
    if limit and progress.seconds >= limit and not progress.user_batches:
        return True
    return all(_stopped(progress, job, run, progress.epoch) for run, job in enumerate(jobs))


def _stopped(progress: Progress, job: Job, run: int, epoch: int) -> bool:
    """Whether this run was over after `epoch`; in a stack it may still be carried along."""
    waited = epoch - progress.best_epoch[run]
    return bool(progress.diverged[run]) or waited >= job.config.training.patience
