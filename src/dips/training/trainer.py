"""Fit recommenders and policies to the users who train: a stack of runs, epoch by epoch.

Reads like Algorithm 1 of the paper: users walk, the recommender learns from its predictions, the
policy from what its choices did to them. Knows nothing of metrics or files: it is given
`validate`, and reports each epoch to `watch`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dips.numerics.recorded import Recorded
from dips.policy.base import Policy
from dips.policy.registry import learns
from dips.policy.stacked import Stacked
from dips.recommender.base import Recommender
from dips.recommender.stack import Stack, State
from dips.stream.users import Columns
from dips.trace import StoredTrace, Trace
from dips.training.blocks import Block, Whole
from dips.training.decisions import Clock, Lesson
from dips.training.optimizers import StackedAdam, StackedSGD
from dips.training.policy_gradients import policy_gradients
from dips.training.recommender_gradients import recommender_gradients
from dips.training.walks import Job, Walks

Validate = Callable[[Stack, Trace], list[float]]
"""Scores of all runs on a validation trace; lower is better."""
RATES = {"items": "learning_rate", "user": "user_rate", "policy": "policy_rate"}
"""Settings that give each group of parameters its step size."""
WORTH_RECORDING = 8
"""Steps of one shape from which on recording them pays."""


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
    policies: Stacked | None
    """Policies that learn, or None."""
    best: State
    walked: State
    """The recommenders as the policies last asked them."""
    optimizers: dict[str, StackedAdam | StackedSGD]
    """By what they move: items, user (where it has its own), policy (where it learns)."""
    progress: Progress

    def parameters(self) -> State:
        """Everything that a run is made of, recommenders and policies, as it is now."""
        named = {f"recommender.{name}": value for name, value in self.stack.state.items()}
        if self.policies is not None:
            named |= {f"policy.{name}": value for name, value in self.policies.state.items()}
        return named

    def chosen(self) -> tuple[Stack, Stacked | None]:
        """The best epoch of each run."""
        stack = Stack(self.stack.template, _under("recommender.", self.best))
        if self.policies is None:
            return stack, None
        return stack, Stacked(self.policies.template, _under("policy.", self.best))

    @property
    def steps(self) -> Tensor:
        """[runs] how often the items have moved."""
        items = self.optimizers["items"]
        assert isinstance(items, StackedAdam)
        return items.steps

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, for a checkpoint."""
        named = {f"now.{name}": value for name, value in self.parameters().items()}
        named |= {f"best.{name}": value for name, value in self.best.items()}
        named |= {f"walked.{name}": value for name, value in self.walked.items()}
        for group, optimizer in self.optimizers.items():
            named |= {f"{group}.{name}": value for name, value in optimizer.state().items()}
        return named

    def load(self, tensors: dict[str, Tensor], progress: Progress) -> None:
        """Take up where a checkpoint stopped."""
        for prefix, state in (
            ("now.", self.parameters()), ("best.", self.best), ("walked.", self.walked)
        ):  # fmt: skip
            for name, value in state.items():
                value.copy_(tensors[prefix + name])
        for group, optimizer in self.optimizers.items():
            optimizer.load(_under(f"{group}.", tensors))
        self.progress = progress


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin so, by the rest of the name."""
    return {
        name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)
    }


Watch = Callable[[Fitting], None]
"""Called after each epoch; may save a checkpoint or draw a bar."""


def start(
    jobs: Sequence[Job],
    recommenders: Sequence[Recommender],
    device: str,
    policies: Sequence[Policy] = (),
) -> Fitting:
    """Set up a stack of runs that has seen nothing yet."""
    stack = Stack.of(recommenders, device)
    modules = [policy for policy in policies if isinstance(policy, nn.Module) and learns(policy)]
    networks = Stacked.of(modules, device) if modules else None
    decay = torch.tensor([job.config.weight_decay for job in jobs], device=device)
    trained = {name: stack.state[name] for name in stack.trainable}
    optimizers: dict[str, StackedAdam | StackedSGD] = {}
    if jobs[0].config.user_rate:
        optimizers["user"] = StackedSGD({"user_prior": trained.pop("user_prior")}, decay)
    optimizers["items"] = StackedAdam(trained, decay, stack.template.undecayed)
    if networks is not None:
        weight = torch.tensor([job.config.policy_decay for job in jobs], device=device)
        moved = {name: networks.state[name] for name in networks.trainable}
        optimizers["policy"] = StackedAdam(moved, weight)
    count = len(jobs)
    progress = Progress(best=[math.inf] * count, best_epoch=[0] * count, diverged=[""] * count)
    walked = {name: value.clone() for name, value in stack.state.items()}
    fitting = Fitting(stack, networks, {}, walked, optimizers, progress)
    fitting.best = {name: value.clone() for name, value in fitting.parameters().items()}
    return fitting


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
        blocks: Iterable[Block]
        if training is None:
            blocks = walks.blocks(progress.epoch, stack, fitting.policies)
        else:
            blocks = [Whole(training)]
        losses = _epoch(fitting, jobs, blocks, walks.clock)
        training, validation = _walk(fitting, walks, config.reroll)
        scores = validate(stack, validation)
        _remember(fitting, jobs, losses, scores)
        progress.seconds += time.monotonic() - began
        watch(fitting)


def _walk(fitting: Fitting, walks: Walks, reroll: int) -> tuple[Trace | None, Trace]:
    """Sketches for the next epoch and for validating the last; training's every `reroll`."""
    if fitting.progress.epoch % reroll == 0:
        for name, value in fitting.walked.items():
            value.copy_(fitting.stack.state[name])
    walked = Stack(fitting.stack.template, fitting.walked)
    return walks.sketches(fitting.progress.epoch + 1, fitting.stack, walked, fitting.policies)


def _epoch(
    fitting: Fitting, jobs: Sequence[Job], blocks: Iterable[Block], clock: Clock
) -> list[float]:
    """One pass over all training predictions; the mean losses."""
    lessons = _Lessons(fitting, jobs, clock)
    for block in blocks:
        lessons.learn(block)
    means: list[float] = (lessons.total / lessons.sizes).tolist()
    return means


class _Lessons:
    """An epoch of updates: the recommender's and the policy's in turn (Algorithm 1, 8 and 12)."""

    def __init__(self, fitting: Fitting, jobs: Sequence[Job], clock: Clock) -> None:
        self.fitting, self.clock = fitting, clock
        self.config, self.epoch = jobs[0].config, fitting.progress.epoch
        self.seeds = [job.config.seed for job in jobs]
        device = next(iter(fitting.stack.state.values())).device
        self.sizes = torch.tensor([len(job.train) for job in jobs], device=device)
        self.taken = torch.zeros_like(self.sizes)
        self.total = torch.zeros(len(jobs), dtype=torch.float64, device=device)
        self.running = torch.tensor([not text for text in fitting.progress.diverged], device=device)
        self.peaks = {
            group: torch.tensor([getattr(job.config, setting) for job in jobs], device=device)
            for group, setting in RATES.items()
        }
        until = max(self.config.policy_wait + 1, self.config.epochs - self.config.policy_rest)
        awake = self.config.policy_wait < self.epoch <= until
        self.policies = fitting.policies if awake else None

    def learn(self, block: Block) -> None:
        """Learn from a block: predictions in batches, and as evenly between them, decisions."""
        batches = block.batches(self.seeds, self.epoch, self.config.batch)
        lessons = []
        if self.policies is not None:
            lessons = block.lessons(self.clock, self.seeds, self.epoch, self.config)
        predict, choose = self._recommender(block.trace), self._policy(block.trace)
        still = torch.zeros(len(self.seeds), device=self.total.device)
        if isinstance(block.trace, StoredTrace) and len(batches) >= WORTH_RECORDING:
            predict = Recorded(predict, batches[0], still, still, still)
        if len(lessons) >= WORTH_RECORDING:
            choose = Recorded(choose, *lessons[0], still, still)
        for index, batch in enumerate(batches):
            present = (batch >= 0).sum(1)
            active = ((present > 0) & self.running).float()
            level = self._level()
            predict(batch, self.peaks["items"] * level, self.peaks["user"] * level, active)
            self.taken += present
            first, last = (i * len(lessons) // len(batches) for i in (index, index + 1))
            for lesson in lessons[first:last]:
                choose(*lesson, self.peaks["policy"] * level, self.running.float())

    def _level(self) -> Tensor:
        """[runs] how far rates have fallen by now."""
        done = (self.epoch - 1 + self.taken / self.sizes) / self.config.epochs
        if self.config.annealing == "constant":
            return torch.ones_like(done)
        return (1 + torch.cos(math.pi * done)) / 2

    def _recommender(self, trace: Trace) -> Callable[..., None]:
        stack, optimizers = self.fitting.stack, self.fitting.optimizers

        def step(batch: Tensor, rate: Tensor, user_rate: Tensor, active: Tensor) -> None:
            losses, gradients = recommender_gradients(stack, trace, batch)
            parameters = {name: stack.state[name] for name in gradients}
            if "user" in optimizers:
                user = {"user_prior": parameters.pop("user_prior")}
                optimizers["user"].step(user, gradients, user_rate, active)
            optimizers["items"].step(parameters, gradients, rate, active)
            self.total.add_(torch.where(active > 0, losses * (batch >= 0).sum(1), 0.0))

        return step

    def _policy(self, trace: Trace) -> Callable[..., None]:
        def step(
            predicted: Tensor, decided: Tensor, held: Tensor, rate: Tensor, active: Tensor
        ) -> None:
            policies = self.policies
            assert policies is not None
            assert isinstance(trace, StoredTrace)
            lesson = Lesson(predicted, decided, held)
            stack = self.fitting.stack
            gradients = policy_gradients(stack, policies, trace, self.clock, lesson, self.config)
            parameters = {name: policies.state[name] for name in gradients}
            there = active * (decided >= 0).any(1)
            self.fitting.optimizers["policy"].step(parameters, gradients, rate, there)

        return step


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
                f"{int(fitting.steps[run])}, learning rate {job.config.learning_rate:g}, "
                f"inner rate {job.config.inner_rate:g}): lower the inner rate first, then the "
                "learning rate"
            )
        elif score < progress.best[run]:
            progress.best[run], progress.best_epoch[run] = score, progress.epoch
            for name, value in fitting.parameters().items():
                fitting.best[name][run] = value[run]
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
