"""Adam and SGD for stacked runs, each with its own learning rate and decay."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

BETAS = (0.9, 0.999)
EPSILON = 1e-8
MOMENTUM = 0.9


def advance(
    gradient: Tensor, first: Tensor, second: Tensor, moves: Tensor, size: Tensor, root: Tensor
) -> Tensor:
    """Return Adam's step where `moves` is 1; both moments are updated in place.

    Args:
        gradient: The gradient.
        first: First moment.
        second: Second moment.
        moves: 1 where a parameter is updated, else 0.
        size: Learning rate over the bias correction of the first moment.
        root: Root of the bias correction of the second moment.
    """
    first.lerp_(gradient, (1 - BETAS[0]) * moves)
    second.lerp_(gradient * gradient, (1 - BETAS[1]) * moves)
    step = size * first / (second.sqrt() / root + EPSILON)
    return torch.where(moves > 0, step, 0.0)


class StackedAdam:
    """Adam with coupled L2 decay, as in `torch.optim.Adam`, over tensors with an axis of runs."""

    def __init__(
        self, parameters: Mapping[str, Tensor], decay: Tensor, undecayed: Collection[str] = ()
    ) -> None:
        self.decay = decay  # [runs]
        self.undecayed = frozenset(undecayed)
        self.steps = torch.zeros_like(decay, dtype=torch.float64)  # [runs]
        self.first = {name: torch.zeros_like(value) for name, value in parameters.items()}
        self.second = {name: torch.zeros_like(value) for name, value in parameters.items()}

    def step(
        self,
        parameters: dict[str, Tensor],
        gradients: Mapping[str, Tensor],
        rate: Tensor,
        active: Tensor,
    ) -> None:
        """Update the `active` [runs] runs with their learning `rate` [runs], in place."""
        self.steps += active
        clock = self.steps.clamp_min(1)
        bias = [(1 - beta**clock) for beta in BETAS]
        size, scale = rate * active / bias[0], bias[1].sqrt()
        for name, value in parameters.items():
            shape = (-1,) + (1,) * (value.dim() - 1)
            moves, large, root = (
                field.view(shape).to(value.dtype) for field in (active, size, scale)
            )
            gradient = gradients[name]
            if name not in self.undecayed:
                gradient = gradient + self.decay.view(shape) * value
            first, second = self.first[name], self.second[name]
            value.sub_(advance(gradient, first, second, moves, large, root))

    def reset_momentum(self, run: int) -> None:
        """Reset the first moment of a run after its parameters were reverted."""
        for value in self.first.values():
            value[run] = 0.0

    def state(self) -> dict[str, Tensor]:
        """Return all tensors of a checkpoint."""
        named = {f"first.{name}": value for name, value in self.first.items()}
        named |= {f"second.{name}": value for name, value in self.second.items()}
        return named | {"steps": self.steps}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore the tensors of a checkpoint."""
        self.steps.copy_(state["steps"])
        for name in self.first:
            self.first[name].copy_(state[f"first.{name}"])
            self.second[name].copy_(state[f"second.{name}"])


class StackedSGD:
    """SGD with momentum and L2 decay, as `torch.optim.SGD`, over tensors with an axis of runs."""

    def __init__(self, parameters: Mapping[str, Tensor], decay: Tensor) -> None:
        self.decay = decay  # [runs]
        self.moving = {name: torch.zeros_like(value) for name, value in parameters.items()}

    def step(
        self,
        parameters: dict[str, Tensor],
        gradients: Mapping[str, Tensor],
        rate: Tensor,
        active: Tensor,
    ) -> None:
        """Update the `active` [runs] runs with their learning `rate` [runs], in place."""
        for name, value in parameters.items():
            shape = (-1,) + (1,) * (value.dim() - 1)
            moves = active.view(shape) > 0
            slope = gradients[name] + self.decay.view(shape) * value
            moving = self.moving[name]
            moving.copy_(torch.where(moves, MOMENTUM * moving + slope, moving))
            value.sub_(torch.where(moves, rate.view(shape) * moving, 0.0))

    def state(self) -> dict[str, Tensor]:
        """Return all tensors of a checkpoint."""
        return dict(self.moving)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore the tensors of a checkpoint."""
        for name, value in self.moving.items():
            value.copy_(state[name])
