"""One epoch: update recommender and policy in turn, block by block, for all stacked runs at once.

Lines 6 to 8 and 10 to 12 of the paper's Algorithm 1. Nothing waits for the device between two user
batches, but for a check every `CHECK_STEPS` steps that losses and parameters are finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from dips.numerics.cuda_graph import CapturedGraph
from dips.numerics.process_group import SINGLE_PROCESS, ProcessGroup
from dips.policy.settings import PRETRAINED
from dips.recommender.losses import SampledLoss
from dips.recommender.sequential import Sequential
from dips.rollout.trace import FullHistoryTrace, StoredTrace, Trace
from dips.training.batches import TrainingBlock, interleave
from dips.training.config import TrainConfig
from dips.training.lazy_adam import LazyAdam, touched_rows
from dips.training.negative_sampling import NegativeSampler
from dips.training.policy_batches import PolicyBatch, RefreshTable
from dips.training.policy_gradients import policy_gradients
from dips.training.recommender_gradients import items_read, recommender_gradients, touched_sums
from dips.training.rollouts import Job
from dips.training.sequences import dropouts, sequence_gradients
from dips.training.state import TrainingState, store_sums

RATES = {"items": "learning_rate", "user": "user_lr", "policy": "policy_lr"}
"""The learning rate of each parameter group, by setting."""
CAPTURE_STEPS = 8
"""Steps of one shape from which a CUDA graph pays."""
CHECK_STEPS = 500
"""Steps between two checks that losses and parameters are finite."""
AfterBatch = Callable[[Callable[[], bool]], None]
"""Called with a function that brings the progress up to date and returns whether to save it."""


def train_epoch(
    state: TrainingState,
    jobs: Sequence[Job],
    blocks: Iterable[TrainingBlock],
    refresh_table: RefreshTable,
    after_batch: AfterBatch = lambda record: None,
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> list[float]:
    """Update all runs by all training predictions once. Ends early if every run has diverged.

    Args:
        state: Updated in place. Its progress tells how far the epoch has come, so that it can be
            saved within it. Rollouts need not be saved: they start with empty sketches, and are
            repeated with the parameters that they had.
        jobs: One per run.
        blocks: What to learn from, in order.
        refresh_table: The refresh schedule as tensors.
        after_batch: Called after each batch, with the function that brings `state.progress` up to
            date, so that the state can be saved.
        process_group: Processes that share the users.

    Returns:
        The mean training loss of each run.
    """
    updates = _EpochUpdates(state, jobs, refresh_table, process_group)
    for block in blocks:
        updates.learn(block, after_batch)
        is_last = block.is_last
        del block  # frees its trace before the next one is made
        if is_last:
            updates.end_user_batch()
            after_batch(updates.record)
        if updates.all_diverged:
            break
    means: list[float] = (updates.loss_sums / updates.sizes).tolist()
    return means


def is_policy_trained(config: TrainConfig, epoch: int) -> bool:
    """Return whether policies are updated in this epoch: after warm-up and before the freeze.

    The policy `pretrained` is never updated.
    """
    if config.sketch.policy == PRETRAINED:
        return False
    warmup = config.policy_training.policy_warmup_epochs
    last = config.training.epochs - config.policy_training.policy_freeze_epochs
    return warmup < epoch <= max(warmup + 1, last)


class _EpochUpdates:
    """The updates of one epoch, from where it was interrupted."""

    def __init__(
        self,
        state: TrainingState,
        jobs: Sequence[Job],
        refresh_table: RefreshTable,
        process_group: ProcessGroup,
    ) -> None:
        self.state, self.jobs = state, jobs
        self.refresh_table, self.process_group = refresh_table, process_group
        self.config, self.progress = jobs[0].config, state.progress
        self.epoch = self.progress.epoch
        self.seeds = [job.config.training.training_seed for job in jobs]
        device = next(iter(state.stack.state.values())).device
        counted = [int((job.train.lengths - job.train.warmup).sum()) for job in jobs]
        self.sizes = torch.tensor(counted, device=device)
        self.predictions = torch.zeros_like(self.sizes)
        self.loss_sums = torch.zeros(len(jobs), dtype=torch.float64, device=device)
        if self.progress.predictions:
            self.predictions += torch.tensor(self.progress.predictions, device=device)
            self.loss_sums += torch.tensor(
                self.progress.loss_sums, dtype=torch.float64, device=device
            )
        self.longest = max(counted)
        self.rows_done = max(self.progress.predictions, default=0)
        self.batches_done = 0
        self.running = torch.tensor([not text for text in self.progress.diverged], device=device)
        self.peaks = {
            group: torch.tensor([job.config[setting] or 0.0 for job in jobs], device=device)
            for group, setting in RATES.items()
        }
        self.peaks["policy"] *= torch.tensor(self.progress.policy_lr_scale, device=device)
        self.policies = state.policies if is_policy_trained(self.config, self.epoch) else None
        contrasts = isinstance(state.stack.template.loss, SampledLoss)
        self.negatives = NegativeSampler(jobs, device) if contrasts else None
        self.unchecked_steps = 0
        sums = state.stack.state.get("stored_sums")
        self.has_sums = sums is not None and sums.numel() > 0
        if self.has_sums and not self.progress.predictions:
            store_sums(state.stack)  # removes the rounding errors of the last epoch

    def learn(self, block: TrainingBlock, after_batch: AfterBatch) -> None:
        """Update by the predictions of a block in batches, with policy updates in between.

        Batches that were done before an interruption are passed over.
        """
        batches = block.batches(self.seeds, self.epoch, self.config.training.batch_size)
        policy_batches = []
        if self.policies is not None:
            policy_batches = block.policy_batches(
                self.refresh_table, self.seeds, self.epoch, self.config
            )
        update_recommender = self._recommender_update(block.trace)
        update_policy = self._policy_update(block.trace)
        still = torch.zeros(len(self.seeds), device=self.loss_sums.device)
        single = self.process_group.world_size == 1  # a graph cannot hold a collective operation
        if single and isinstance(block.trace, StoredTrace) and len(batches) >= CAPTURE_STEPS:
            update_recommender = CapturedGraph(update_recommender, batches[0], still, still, still)
        if single and len(policy_batches) >= CAPTURE_STEPS:
            update_policy = CapturedGraph(update_policy, *policy_batches[0], still, still)
        skip, self.progress.batches_done = self.progress.batches_done, 0
        if skip:
            self.predictions -= sum((batch >= 0).sum(1) for batch in batches[:skip])
        level = self._schedule_factor()
        for index, (batch, due) in enumerate(interleave(batches, policy_batches)):
            present = (batch >= 0).sum(1)
            active = ((present > 0) & self.running).float()
            # A run without rows in this batch keeps the rate of its last one.
            level = torch.where(present > 0, self._schedule_factor(), level)
            if index < skip:
                self.predictions += present
                continue
            rates = self.peaks["items"] * level, self.peaks["user"] * level
            update_recommender(block.local_rows(batch), *rates, active)
            self.predictions += present
            for policy_batch in due:
                there = self.running & (policy_batch.prediction_places >= 0).flatten(1).any(1)
                update_policy(
                    *block.local_policy_batch(policy_batch),
                    self.peaks["policy"] * level,
                    there.float(),
                )
            self.unchecked_steps += 1
            if self.unchecked_steps >= CHECK_STEPS:
                self.check_finite()
            if self.all_diverged:
                return
            self.batches_done, self.rows_done = index + 1, self.rows_done + batch.shape[1]
            self.progress.share = min(1.0, self.rows_done / max(1, self.longest))
            if self.batches_done < len(batches):
                after_batch(self.record)
        self.batches_done = self.progress.batches_done = 0

    def end_user_batch(self) -> None:
        """Count a batch of users, and stop the runs whose numbers are not finite."""
        self.check_finite()
        self.progress.user_batches_done += 1
        self.rows_done = int(self.predictions.max())  # without padding

    def record(self) -> bool:
        """Bring the progress up to date; return whether the state can be saved here.

        It cannot within a rollout that goes on while parameters change, at the end of the epoch,
        which is saved after its validation, or if a number is not finite.
        """
        ended = bool((self.predictions >= self.sizes).all())
        if self.config.training.update_interval if self.batches_done else ended:
            return False
        self.progress.batches_done = self.batches_done
        self.progress.predictions = self.predictions.tolist()
        self.progress.loss_sums = self.loss_sums.tolist()
        # Not `check_finite`: all processes must stop a run at the same step.
        model_finite, policy_finite = self._finite_runs()
        return all(
            finite or stopped
            for finite, stopped in zip(
                (model_finite & policy_finite).tolist(), self.progress.diverged, strict=True
            )
        )

    def _finite_runs(self) -> tuple[Tensor, Tensor]:
        """Return whether losses and recommender, and the policy, of each run are finite, [runs]."""
        model_finite = self.loss_sums.isfinite() & _finite(self.state.stack.state)
        policy_finite = torch.ones_like(model_finite)
        if self.state.policies is not None:
            policy_finite = _finite(self.state.policies.state)
        return model_finite, policy_finite

    def check_finite(self) -> None:
        """Stop the runs whose losses or parameters are not finite, with a message."""
        self.unchecked_steps = 0
        model_finite, policy_finite = self._finite_runs()
        pairs = zip(model_finite.tolist(), policy_finite.tolist(), strict=True)
        for run, (model, policy) in enumerate(pairs):
            if not (model and policy) and not self.progress.diverged[run]:
                message = divergence_message(self.state, self.jobs[run], run, policy_only=model)
                self.progress.diverged[run] = message
        self.running &= model_finite & policy_finite

    @property
    def all_diverged(self) -> bool:
        """Return whether every run has diverged."""
        return all(self.progress.diverged)

    def _schedule_factor(self) -> Tensor:
        """Return the factor of the learning-rate schedule, [runs]."""
        done = (self.epoch - 1 + self.predictions / self.sizes) / self.config.training.epochs
        if self.config.training.lr_schedule == "constant":
            return torch.ones_like(done)
        return (1 + torch.cos(math.pi * done)) / 2

    def _recommender_update(self, trace: Trace) -> Callable[..., None]:
        """Return the update of the recommenders by one batch (lines 6 to 8)."""
        stack, optimizers = self.state.stack, self.state.optimizers

        def step(batch: Tensor, rate: Tensor, user_lr: Tensor, active: Tensor) -> None:
            if self.negatives is not None:
                self.negatives.draw(stack.state, self.state.steps, active)
            touched: Tensor | None = None
            items = optimizers["items"]
            if isinstance(items, LazyAdam):  # all processes update the same rows
                read = items_read(trace, batch, stack.state.get("negatives"))
                touched = touched_rows(self.process_group.all_gather(read.T).T)
            if isinstance(stack.template, Sequential) and isinstance(trace, FullHistoryTrace):
                drops = dropouts([job.config for job in self.jobs], self.state.steps)
                losses, gradients = sequence_gradients(stack, trace, batch, drops)
            else:
                losses, gradients = recommender_gradients(stack, trace, batch, touched)
            count = (batch >= 0).sum(1)
            losses, gradients, count = self.process_group.mean_over_predictions(
                losses, gradients, count
            )
            parameters = {name: stack.state[name] for name in gradients}
            if "user" in optimizers:
                user = {"user_prior": parameters.pop("user_prior")}
                optimizers["user"].step(user, gradients, user_lr, active)
            if isinstance(items, LazyAdam):
                assert touched is not None
                before = touched_sums(stack, touched) if self.has_sums else 0.0
                items.step(parameters, gradients, rate, active, touched)
                if self.has_sums:  # the cost depends on the rows of the batch, not on all items
                    stack.state["stored_sums"] += touched_sums(stack, touched) - before
            else:
                items.step(parameters, gradients, rate, active)
            self.loss_sums.add_(torch.where(active > 0, losses * count, 0.0))

        return step

    def _policy_update(self, trace: Trace) -> Callable[..., None]:
        """Return the update of the policies by one policy batch (lines 10 to 12)."""

        def step(
            predicted: Tensor,
            decided: Tensor,
            prediction_places: Tensor,
            rate: Tensor,
            active: Tensor,
        ) -> None:
            policies = self.policies
            assert policies is not None
            assert isinstance(trace, StoredTrace)
            policy_batch = PolicyBatch(predicted, decided, prediction_places)
            stack = self.state.stack
            gradients = policy_gradients(
                stack, policies, trace, self.refresh_table, policy_batch, self.config
            )
            count = (predicted >= 0).sum(1)
            _, gradients, _ = self.process_group.mean_over_predictions(
                torch.zeros_like(rate), gradients, count
            )
            parameters = {name: policies.state[name] for name in gradients}
            self.state.optimizers["policy"].step(parameters, gradients, rate, active)

        return step


def _finite(state: dict[str, Tensor]) -> Tensor:
    """Return whether all parameters of each run are finite, [runs]: then their sums are."""
    sums = [value.view(len(value), -1).sum(1, dtype=torch.float64) for value in state.values()]
    return torch.stack(sums).isfinite().all(0)


def divergence_message(state: TrainingState, job: Job, run: int, policy_only: bool = False) -> str:
    """Return which numbers diverged, when, and which setting to lower first.

    Args:
        state: The stacked runs.
        job: The run.
        run: Its index.
        policy_only: Whether losses and recommender are still finite.
    """
    config = job.config
    rates = [
        f"learning_rate {config.training.learning_rate:g}",
        f"inner_lr {config.model.inner_lr:g}",
    ]
    advice = "lower inner_lr first, then learning_rate"
    if state.policies is not None:
        rates.insert(1, f"policy_lr {config.policy_training.policy_lr:g}")
        advice += ", then policy_lr"
    if policy_only:
        advice = "lower policy_lr first"
    what = "policy" if policy_only else "loss"
    return (
        f"the {what} was not finite in epoch {state.progress.epoch} "
        f"(step {int(state.steps[run])}, {', '.join(rates)}): {advice}"
    )
