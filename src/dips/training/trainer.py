"""Fit recommenders under their policies' sketches: a stack of runs, epoch by epoch.

Knows nothing of metrics or files: it is given `validate`, and reports each epoch to `watch`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.utils._pytree import tree_map

from dips.numerics.hashing import combine
from dips.numerics.recorded import Recorded
from dips.recommender.base import Evidence, Recommender
from dips.recommender.stack import Stack, State
from dips.rollout import StoredTrace, Trace, WholeTrace
from dips.stream.users import Columns
from dips.training.optimizers import StackedAdam
from dips.training.walks import Job, Walks

Validate = Callable[[Stack, Trace], list[float]]
"""Scores of all runs on a validation trace; lower is better."""


@dataclass
class Progress:
    """Where a stack of runs stands: everything that a checkpoint has to hold besides tensors."""

    epoch: int = 0
    best: list[float] = field(default_factory=list)
    best_epoch: list[int] = field(default_factory=list)
    diverged: list[str] = field(default_factory=list)
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)


@dataclass(eq=False)
class Fitting:
    """A stack of runs in training."""

    stack: Stack
    best: State
    walked: State
    """The recommenders as the policies last asked them."""
    optimizer: StackedAdam
    progress: Progress

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, for a checkpoint."""
        named = {f"model.{name}": value for name, value in self.stack.state.items()}
        named |= {f"best.{name}": value for name, value in self.best.items()}
        named |= {f"walked.{name}": value for name, value in self.walked.items()}
        return named | {f"adam.{name}": value for name, value in self.optimizer.state().items()}

    def load(self, tensors: dict[str, Tensor], progress: Progress) -> None:
        """Take up where a checkpoint stopped."""
        for name in self.stack.state:
            self.stack.state[name].copy_(tensors[f"model.{name}"])
            self.best[name].copy_(tensors[f"best.{name}"])
            self.walked[name].copy_(tensors[f"walked.{name}"])
        pieces = {name[5:]: value for name, value in tensors.items() if name.startswith("adam.")}
        self.optimizer.load(pieces)
        self.progress = progress


Watch = Callable[[Fitting], None]
"""Called after each epoch; may save a checkpoint or draw a bar."""


def start(jobs: Sequence[Job], recommenders: Sequence[Recommender], device: str) -> Fitting:
    """Set up a stack of runs that has seen nothing yet."""
    stack = Stack.of(recommenders, device)
    decay = torch.tensor([job.config.weight_decay for job in jobs], device=device)
    trained = {name: stack.state[name] for name in stack.trainable}
    optimizer = StackedAdam(trained, decay, stack.template.undecayed)
    count = len(jobs)
    progress = Progress(best=[math.inf] * count, best_epoch=[0] * count, diverged=[""] * count)
    best, walked = ({name: value.clone() for name, value in stack.state.items()} for _ in "12")
    return Fitting(stack, best, walked, optimizer, progress)


def fit(
    fitting: Fitting,
    jobs: Sequence[Job],
    columns: Columns,
    validate: Validate,
    watch: Watch = lambda fitting: None,
) -> None:
    """Train until the epochs are over, patience or time runs out; the best epoch of each run stays.

    Runs of one policy, size and schedule stand next to each other in `jobs`.
    """
    config, stack, progress = jobs[0].config, fitting.stack, fitting.progress
    walks = Walks(jobs, columns)
    training, _ = _walk(fitting, walks, config.reroll)
    while progress.epoch < config.epochs and not _finished(progress, jobs):
        began = time.monotonic()
        progress.epoch += 1
        losses = _epoch(fitting, jobs, training)
        training, validation = _walk(fitting, walks, config.reroll)
        scores = validate(stack, validation)
        _remember(fitting, jobs, losses, scores)
        progress.seconds += time.monotonic() - began
        watch(fitting)


def _walk(fitting: Fitting, walks: Walks, reroll: int) -> tuple[Trace, Trace]:
    """Sketches for the next epoch and for validating the last; training's every `reroll`."""
    if fitting.progress.epoch % reroll == 0:
        for name, value in fitting.walked.items():
            value.copy_(fitting.stack.state[name])
    walked = Stack(fitting.stack.template, fitting.walked)
    return walks.sketches(fitting.progress.epoch + 1, fitting.stack, walked)


def _epoch(fitting: Fitting, jobs: Sequence[Job], trace: Trace) -> list[float]:
    """One pass over all training predictions, in an order of its own; the mean losses."""
    config, progress = jobs[0].config, fitting.progress
    rows = _shuffled(trace, [job.config.seed for job in jobs], progress.epoch, config.batch)
    device = rows.device
    peak = torch.tensor([job.config.learning_rate for job in jobs], device=device)
    sizes = torch.tensor(trace.run_rows, device=device).diff()
    length = (sizes + config.batch - 1) // config.batch  # [runs] batches in an epoch
    running = torch.tensor([not text for text in progress.diverged], device=device)
    total = torch.zeros(len(jobs), dtype=torch.float64, device=device)

    def step(batch: Tensor, rate: Tensor, active: Tensor) -> None:
        losses, gradients = _gradients(fitting.stack, trace, batch)
        parameters = {name: fitting.stack.state[name] for name in gradients}
        fitting.optimizer.step(parameters, gradients, rate, active)
        total.add_(torch.where(active > 0, losses * (batch >= 0).sum(1), 0.0))

    batches = torch.split(rows, config.batch, 1)
    clock = torch.arange(len(batches), device=device)[:, None]
    done = (progress.epoch - 1 + clock / length) / config.epochs
    rates = peak * (1 + torch.cos(math.pi * done)) / 2  # [batches, runs]
    active = ((clock < length) & running).float()
    inert = (batches[0], rates[0], torch.zeros_like(active[0]))
    take = Recorded(step, *inert) if isinstance(trace, StoredTrace) else step
    for index, batch in enumerate(batches):
        take(batch, rates[index], active[index])
    means: list[float] = (total / sizes).tolist()
    return means


def _gradients(stack: Stack, trace: Trace, rows: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean loss [runs] of a batch of predictions [runs, batch], and its meta-gradients."""
    mass = (rows >= 0).float()
    place = rows.clamp_min(0)
    evidence = trace.evidence(place)
    event = trace.event[place]
    target = (trace.columns.item[event], trace.columns.rating[event])
    trained = {name: stack.state[name] for name in stack.trainable}
    fixed = {name: value for name, value in stack.state.items() if name not in trained}

    def loss(
        parameters: State,
        buffers: State,
        past: Evidence,
        item: Tensor,
        rating: Tensor,
        mass: Tensor,
    ) -> Tensor:
        def task(model: Recommender) -> Tensor:
            losses = model.losses(model.read(past), item[:, None], rating[:, None])[:, 0]
            return (losses * mass).sum() / mass.sum().clamp_min(1)

        result: Tensor = functional_call(stack.template, {**parameters, **buffers}, (task,))
        return result

    arguments = (trained, fixed, evidence, *target, mass)
    if stack.runs == 1:
        alone = grad_and_value(loss)(*tree_map(lambda leaf: leaf[0], arguments))
        gradients, value = tree_map(lambda leaf: leaf[None], alone)
    else:
        gradients, value = vmap(grad_and_value(loss))(*arguments)
    return value, gradients


def _shuffled(trace: Trace, seeds: Sequence[int], epoch: int, batch: int) -> Tensor:
    """[runs, padded] rows of each run in the order of this epoch; -1 pads to whole batches.

    The order is a function of the run's seed and the epoch: a resumed run goes on as if never
    stopped, and a stacked run sees what it would see alone.
    """
    sizes = [last - first for first, last in zip(trace.run_rows, trace.run_rows[1:], strict=False)]
    width = math.ceil(max(sizes) / batch) * batch
    rows = torch.full((len(sizes), width), -1, dtype=torch.int64, device=trace.event.device)
    for run, (size, seed) in enumerate(zip(sizes, seeds, strict=True)):
        first = trace.run_rows[run]
        order = combine(torch.arange(size, device=rows.device), seed, epoch).argsort()
        if isinstance(trace, WholeTrace):
            order = _alike(order, trace.step[first : first + size], batch)
        rows[run, :size] = first + order
    return rows


def _alike(order: Tensor, step: Tensor, batch: int) -> Tensor:
    """The same order but with prefixes of like length in each batch, so that little is padding."""
    order = order[step[order].argsort(stable=True)]
    whole = len(order) // batch * batch
    batches = order[:whole].view(-1, batch)
    batches = batches[combine(batches[:, 0], batch).argsort()]
    return torch.cat([batches.flatten(), order[whole:]])


def _remember(
    fitting: Fitting, jobs: Sequence[Job], losses: Sequence[float], scores: Sequence[float]
) -> None:
    """Keep the best parameters of each run, and note the ones that diverged."""
    progress = fitting.progress
    for run, (job, loss, score) in enumerate(zip(jobs, losses, scores, strict=True)):
        if _stopped(progress, job, run, progress.epoch - 1):
            continue
        if not (math.isfinite(loss) and math.isfinite(score)):
            progress.diverged[run] = (
                f"the loss was no longer a number in epoch {progress.epoch} (step "
                f"{int(fitting.optimizer.steps[run])}, learning rate {job.config.learning_rate:g}, "
                f"inner rate {job.config.inner_rate:g}): lower the inner rate first, then the "
                "learning rate"
            )
        elif score < progress.best[run]:
            progress.best[run], progress.best_epoch[run] = score, progress.epoch
            for name, value in fitting.best.items():
                value[run] = fitting.stack.state[name][run]
    progress.history.append(
        {"epoch": progress.epoch, "train_loss": list(losses), "valid": list(scores)}
    )


def _finished(progress: Progress, jobs: Sequence[Job]) -> bool:
    """Whether every run has stopped getting better, or the time is up."""
    limit = jobs[0].config.max_seconds
    if limit and progress.seconds >= limit:
        return True
    return all(_stopped(progress, job, run, progress.epoch) for run, job in enumerate(jobs))


def _stopped(progress: Progress, job: Job, run: int, epoch: int) -> bool:
    """Whether this run was over after `epoch`; in a stack it may still be carried along."""
    waited = epoch - progress.best_epoch[run]
    return bool(progress.diverged[run]) or waited >= job.config.patience
