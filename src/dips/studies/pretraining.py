"""Pre-train the set network on a family of synthetic datasets.

Knows the worlds (`data/synthetic/family.py`) and how a run starts. The joint training itself is
`training/pretraining.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from dips.data.synthetic.family import Kind, World, family
from dips.policy.pretrained import signal_of
from dips.policy.registry import PolicySpec, build_policy
from dips.recommender.stacked import StateDict
from dips.stream.users import EventColumns
from dips.studies.checks import resolved
from dips.studies.run import start_stack
from dips.training.config import TrainConfig
from dips.training.pretraining import Participant, fit_jointly
from dips.training.rollouts import TrainingRollouts

START_SIZE = 8
"""Sketch size of the rule from which pre-training starts; the worlds have all sizes."""
POLICY_LR = 1e-3
"""Learning rate of the policy; the mean over the worlds is steadier than a single policy."""
PretrainingCallback = Callable[[int, int, float], None]
"""Called after each epoch with cycle, epoch and mean training loss over the worlds."""


def pretrain(
    kind: Kind,
    *,
    worlds: int,
    epochs: int = 10,
    cycles: int = 2,
    seed: int = 0,
    on_epoch: PretrainingCallback = lambda cycle, epoch, loss: None,
) -> tuple[str, StateDict]:
    """Train one policy jointly on the worlds of a family.

    Args:
        kind: What the worlds predict.
        worlds: Number of worlds.
        epochs: Epochs of a cycle.
        cycles: In each cycle new recommenders are trained from the start; the policy goes on.
        seed: Seed of the family, and of training.
        on_epoch: Called after each epoch.

    Returns:
        The signal that the policy reads, one of `dips.policy.pretrained.SIGNALS`, and its
        parameters by name.
    """
    made = family(kind, worlds, seed=seed)
    shared: StateDict = {}
    signals: set[str] = set()
    for cycle in range(cycles):
        participants = []
        for world in made:
            one, spec = _participant(world, epochs, seed, cycle)
            signals.add(signal_of(residual=spec.residual, predicted_score=spec.predicted_score))
            shared = shared or _initial_parameters(spec, seed)
            _set_policy(one, shared)
            participants.append(one)

        def report(epoch: int, losses: list[float], cycle: int = cycle) -> None:
            on_epoch(cycle + 1, epoch, sum(losses) / len(losses))

        shared = fit_jointly(participants, epochs, report)
    (signal,) = signals  # all worlds of a family read the same signal
    return signal, shared


def _participant(
    world: World, epochs: int, seed: int, cycle: int
) -> tuple[Participant, PolicySpec]:
    """Return the run of a world before training, and the specification of its policy."""
    data = world.load()
    parts = data.split_users(0.9, 0.05, 0.05, seed=seed)
    config = TrainConfig.of(
        policy="learned", size=world.size, every=world.every, seed=seed, repeat=cycle,
        epochs=epochs, baselines=(), initial_policy="rule", device="cpu", policy_lr=POLICY_LR,
        policy_freeze_epochs=0, user_batch=parts[0].users,
    )  # fmt: skip
    config = resolved(parts[0], config)
    started = start_stack([(parts, config)], "cpu")
    columns = EventColumns.of(data, "cpu")
    rollouts = TrainingRollouts(started.work, columns)
    return Participant(started.state, started.work[0], rollouts), started.policy_specs[0]


def _initial_parameters(spec: PolicySpec, seed: int) -> StateDict:
    """Return the parameters of a rule, the same for all worlds."""
    network = build_policy(replace(spec, size=START_SIZE), seed)
    assert isinstance(network, nn.Module)
    return {name: value.detach().clone() for name, value in network.named_parameters()}


@torch.no_grad()
def _set_policy(participant: Participant, parameters: StateDict) -> None:
    """Set the policy of a run."""
    policies = participant.state.policies
    assert policies is not None
    for name, value in parameters.items():
        policies.state[name].copy_(value[None])
