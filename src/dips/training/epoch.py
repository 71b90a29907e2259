"""One pass over the training users: recommender and policy learn in turn, block by block.

Algorithm 1 of the paper, lines 8 and 12, for all runs of a stack at once. Nothing waits for the
device between two user_batches of users, but for a look every now and then whether all is well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from dips.numerics.cuda_graph import CapturedGraph
from dips.numerics.process_group import SINGLE_PROCESS, ProcessGroup
from dips.recommender.losses import SampledLoss
from dips.recommender.sequential import Sequential
from dips.rollout.trace import FullHistoryTrace, StoredTrace, Trace
from dips.training.batches import Block, turns
from dips.training.config import TrainConfig
from dips.training.lazy_adam import LazyAdam, touched_rows
from dips.training.negative_sampling import Negatives
from dips.training.policy_batches import Clock, PolicyBatch
from dips.training.policy_gradients import policy_gradients
from dips.training.recommender_gradients import items_read, recommender_gradients
from dips.training.rollouts import Job
from dips.training.sequences import dropouts, sequence_gradients
from dips.training.state import TrainingState

RATES = {"items": "learning_rate", "user": "user_lr", "policy": "policy_lr"}
"""Settings that give each group of parameters its step size."""
WORTH_RECORDING = 8
"""Steps of one shape from which on recording them pays."""
LOOK = 500
"""Steps after which to look whether losses and parameters still are numbers."""


def learn_epoch(
    fitting: TrainingState,
    jobs: Sequence[Job],
    blocks: Iterable[Block],
    clock: Clock,
    pause: Callable[[], None] = lambda: None,
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> list[float]:
    """One pass over all training predictions; the mean losses.

    After every company of users the progress says how far the epoch has come, and `pause` may save
    it. Nothing of a walk needs to be saved there: Algorithm 1 starts each batch of users with empty
    sketches and an empty queue. Ends early when every run has diverged.
    """
    policy_batches = _Lessons(fitting, jobs, clock, process_group)
    for block in blocks:
        policy_batches.learn(block)
        ends = block.ends
        del block  # its trace goes before the next company's is made
        if ends:
            policy_batches.note()
            pause()
        if policy_batches.over:
            break
    means: list[float] = (policy_batches.total / policy_batches.sizes).tolist()
    return means


def awake(config: TrainConfig, epoch: int) -> bool:
    """Whether a policy learns in this epoch: neither waits nor rests."""
    until = max(config.policy_training.policy_warmup_epochs + 1, config.training.epochs - config.policy_training.policy_freeze_epochs)
    return config.policy_training.policy_warmup_epochs < epoch <= until


class _Lessons:
    """An epoch of updates, from where it was left."""

    def __init__(
        self, fitting: TrainingState, jobs: Sequence[Job], clock: Clock, process_group: ProcessGroup
    ) -> None:
        self.fitting, self.jobs, self.clock, self.process_group = (
            fitting,
            jobs,
            clock,
            process_group,
        )
        self.config, self.progress = jobs[0].config, fitting.progress
        self.epoch = self.progress.epoch
        self.seeds = [job.config.training.seed for job in jobs]
        device = next(iter(fitting.stack.state.values())).device
        counted = [int((job.train.lengths - job.train.warmup).sum()) for job in jobs]
        self.sizes = torch.tensor(counted, device=device)
        self.taken = torch.zeros_like(self.sizes)
        self.total = torch.zeros(len(jobs), dtype=torch.float64, device=device)
        if self.progress.user_batches:
            self.taken += torch.tensor(self.progress.taken, device=device)
            self.total += torch.tensor(self.progress.total, dtype=torch.float64, device=device)
        self.running = torch.tensor([not text for text in self.progress.diverged], device=device)
        self.peaks = {
            group: torch.tensor([job.config[setting] or 0.0 for job in jobs], device=device)
            for group, setting in RATES.items()
        }
        self.peaks["policy"] *= torch.tensor(self.progress.ease, device=device)
        self.policies = fitting.policies if awake(self.config, self.epoch) else None
        contrasts = isinstance(fitting.stack.template.loss, SampledLoss)
        self.negatives = Negatives(jobs, device) if contrasts else None
        self.unseen = 0

    def learn(self, block: Block) -> None:
        """Learn from a block: predictions in batches, and as evenly between them, decisions."""
        batches = block.batches(self.seeds, self.epoch, self.config.training.batch_size)
        policy_batches = []
        if self.policies is not None:
            policy_batches = block.policy_batches(self.clock, self.seeds, self.epoch, self.config)
        predict, choose = self._recommender(block.trace), self._policy(block.trace)
        still = torch.zeros(len(self.seeds), device=self.total.device)
        alike = (
            self.process_group.world_size == 1
        )  # shares differ in width; and a graph cannot hold a collective
        if alike and isinstance(block.trace, StoredTrace) and len(batches) >= WORTH_RECORDING:
            predict = CapturedGraph(predict, batches[0], still, still, still)
        if alike and len(policy_batches) >= WORTH_RECORDING:
            choose = CapturedGraph(choose, *policy_batches[0], still, still)
        level = self._level()
        for batch, due in turns(batches, policy_batches):
            present = (batch >= 0).sum(1)
            active = ((present > 0) & self.running).float()
            level = torch.where(present > 0, self._level(), level)  # rates of the last own batch
            rates = self.peaks["items"] * level, self.peaks["user"] * level
            predict(block.own(batch), *rates, active)
            self.taken += present
            for policy_batch in due:
                there = self.running & (policy_batch.held >= 0).flatten(1).any(1)
                choose(
                    *block.own_policy_batch(policy_batch),
                    self.peaks["policy"] * level,
                    there.float(),
                )
            self.unseen += 1
            if self.unseen >= LOOK:
                self.look()
            if self.over:
                return

    def note(self) -> None:
        """Write down how far the epoch has come: a company of users has walked."""
        self.look()
        self.progress.user_batches += 1
        self.progress.taken, self.progress.total = self.taken.tolist(), self.total.tolist()

    def look(self) -> None:
        """Stop the runs whose losses or parameters are no longer numbers, and say why."""
        self.unseen = 0
        told = self.total.isfinite() & _finite(self.fitting.stack.state)
        chose = torch.ones_like(told)
        if self.fitting.policies is not None:
            chose = _finite(self.fitting.policies.state)
        for run, (has_separate_input, chooses) in enumerate(
            zip(told.tolist(), chose.tolist(), strict=True)
        ):
            if not (has_separate_input and chooses) and not self.progress.diverged[run]:
                self.progress.diverged[run] = diverged(
                    self.fitting, self.jobs[run], run, has_separate_input
                )
        self.running &= told & chose

    @property
    def over(self) -> bool:
        """Whether every run has diverged."""
        return all(self.progress.diverged)

    def _level(self) -> Tensor:
        """[runs] how far rates have fallen by now."""
        done = (self.epoch - 1 + self.taken / self.sizes) / self.config.training.epochs
        if self.config.training.lr_schedule == "constant":
            return torch.ones_like(done)
        return (1 + torch.cos(math.pi * done)) / 2

    def _recommender(self, trace: Trace) -> Callable[..., None]:
        stack, optimizers = self.fitting.stack, self.fitting.optimizers

        def step(batch: Tensor, rate: Tensor, user_lr: Tensor, active: Tensor) -> None:
            if self.negatives is not None:
                self.negatives.draw(stack.state, self.fitting.steps, active)
            touched, items = None, optimizers["items"]
            if isinstance(items, LazyAdam):  # the same rows in all processes
                touched = touched_rows(self.process_group.all_gather(items_read(trace, batch).T).T)
            if isinstance(stack.template, Sequential) and isinstance(trace, FullHistoryTrace):
                drops = dropouts([job.config for job in self.jobs], self.fitting.steps)
                losses, gradients = sequence_gradients(stack, trace, batch, drops)
            else:
                losses, gradients = recommender_gradients(stack, trace, batch, touched)
            count = (batch >= 0).sum(1)
            losses, gradients, count = self.process_group.mean_over_predictions(losses, gradients, count)
            parameters = {name: stack.state[name] for name in gradients}
            if "user" in optimizers:
                user = {"user_prior": parameters.pop("user_prior")}
                optimizers["user"].step(user, gradients, user_lr, active)
            if isinstance(items, LazyAdam):
                items.step(parameters, gradients, rate, active, touched)
            else:
                items.step(parameters, gradients, rate, active)
            self.total.add_(torch.where(active > 0, losses * count, 0.0))

        return step

    def _policy(self, trace: Trace) -> Callable[..., None]:
        def step(
            predicted: Tensor, decided: Tensor, held: Tensor, rate: Tensor, active: Tensor
        ) -> None:
            policies = self.policies
            assert policies is not None
            assert isinstance(trace, StoredTrace)
            policy_batch = PolicyBatch(predicted, decided, held)
            stack = self.fitting.stack
            gradients = policy_gradients(
                stack, policies, trace, self.clock, policy_batch, self.config
            )
            count = (predicted >= 0).sum(1)
            _, gradients, _ = self.process_group.mean_over_predictions(torch.zeros_like(rate), gradients, count)
            parameters = {name: policies.state[name] for name in gradients}
            self.fitting.optimizers["policy"].step(parameters, gradients, rate, active)

        return step


def _finite(state: dict[str, Tensor]) -> Tensor:
    """[runs] whether all parameters are numbers: then their sums are."""
    sums = [value.view(len(value), -1).sum(1, dtype=torch.float64) for value in state.values()]
    return torch.stack(sums).isfinite().all(0)


def diverged(fitting: TrainingState, job: Job, run: int, told: bool = False) -> str:
    """What went wrong in a run, where, and what to lower first.

    `told`: losses and recommender are still numbers, it is the policy that is not.
    """
    config = job.config
    rates = [f"learning rate {config.training.learning_rate:g}", f"inner rate {config.model.inner_lr:g}"]
    advice = "lower the inner rate first, then the learning rate"
    if fitting.policies is not None:
        rates.insert(1, f"policy rate {config.policy_training.policy_lr:g}")
        advice += ", then the policy rate"
    if told:
        advice = "lower the policy rate first"
    what = "policy" if told else "loss"
    return (
        f"the {what} was no longer a number in epoch {fitting.progress.epoch} "
        f"(step {int(fitting.steps[run])}, {', '.join(rates)}): {advice}"
    )
