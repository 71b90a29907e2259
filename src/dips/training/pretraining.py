"""Train one policy jointly on several datasets, each with a recommender of its own.

This is federated averaging (McMahan et al. 2017). In every epoch each dataset trains a copy of the
policy together with its recommender. Then every copy becomes the mean of all copies. The result
does not depend on the order of the datasets. Knows nothing about files, metrics or worlds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dips.errors import TrainingDiverged
from dips.recommender.stacked import StateDict
from dips.training.epoch import train_epoch
from dips.training.rollouts import Job, TrainingRollouts
from dips.training.state import TrainingState

JointCallback = Callable[[int, list[float]], None]
"""Called after each epoch with its number and the training loss of each dataset."""


@dataclass(frozen=True, eq=False)
class Participant:
    """One dataset: its run, and where its sketches come from. Rollouts must be interleaved."""

    state: TrainingState
    job: Job
    rollouts: TrainingRollouts


def fit_jointly(
    participants: Sequence[Participant],
    epochs: int,
    on_epoch: JointCallback = lambda epoch, losses: None,
) -> StateDict:
    """Train all recommenders in place, and return the parameters of the shared policy.

    All policies must have the same initial parameters.

    Args:
        participants: The datasets. Their settings have `epochs` epochs.
        epochs: Number of epochs; the policy is averaged after each.
        on_epoch: Called after each epoch.

    Returns:
        One tensor per trainable parameter, without an axis of runs.

    Raises:
        TrainingDiverged: If a run diverged.
        ValueError: If rollouts are not interleaved: validation users would train.
    """
    if not all(participant.rollouts.interleaved for participant in participants):
        raise ValueError("joint training needs interleaved rollouts: set user_batch")
    shared: StateDict = {}
    for epoch in range(1, epochs + 1):
        losses = [_train(participant, epoch) for participant in participants]
        shared = _average([participant.state for participant in participants])
        on_epoch(epoch, losses)
    return {name: value[0] for name, value in shared.items()}


def _train(participant: Participant, epoch: int) -> float:
    """Train one dataset for an epoch; return its mean training loss."""
    state, rollouts = participant.state, participant.rollouts
    state.progress.epoch = epoch
    blocks = rollouts.blocks(epoch, state.stack, state.policies)
    (loss,) = train_epoch(state, [participant.job], blocks, rollouts.refresh_table)
    state.progress.end_epoch()
    if state.progress.diverged[0]:
        raise TrainingDiverged(state.progress.diverged[0])
    return loss


def _average(states: Sequence[TrainingState]) -> StateDict:
    """Set the policies of all runs to their mean, and return it."""
    policies = [state.policies for state in states if state.policies is not None]
    shared = {}
    for name in policies[0].trainable:
        copies = [one.state[name] for one in policies]
        shared[name] = torch.stack(copies).mean(0)
        for value in copies:
            value.copy_(shared[name])
    return shared
