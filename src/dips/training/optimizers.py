"""Adam and SGD for stacked runs, each with its own learning rate and weight decay."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

BETAS = (0.9, 0.999)
EPSILON = 1e-8
MOMENTUM = 0.9


def adam_step(
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    active: Tensor,
    step_size: Tensor,
    sqrt_bias2: Tensor,
) -> Tensor:
    """Return Adam's step where `active` is 1; both moments are updated in place.

    Args:
        gradient: The gradient.
        first: First moment.
        second: Second moment.
        active: 1 where a parameter is updated, else 0.
        step_size: Learning rate over the bias correction of the first moment.
        sqrt_bias2: Root of the bias correction of the second moment.
    """
    first.lerp_(gradient, (1 - BETAS[0]) * active)
    second.lerp_(gradient * gradient, (1 - BETAS[1]) * active)
    step = step_size * first / (second.sqrt() / sqrt_bias2 + EPSILON)
    return torch.where(active > 0, step, 0.0)


class StackedAdam:
    """Adam with coupled weight decay, as `torch.optim.Adam`, over tensors with an axis of runs."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        weight_decay: Tensor,
        undecayed: Collection[str] = (),
    ) -> None:
        self.weight_decay = weight_decay  # [runs]
        self.undecayed = frozenset(undecayed)
        self.steps = torch.zeros_like(weight_decay, dtype=torch.float64)  # [runs]
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
        step_count = self.steps.clamp_min(1)
        bias = [(1 - beta**step_count) for beta in BETAS]
        # active, step_size and sqrt_bias2 of `adam_step`
        factors = active, rate * active / bias[0], bias[1].sqrt()
        for name, value in parameters.items():
            shape = (-1,) + (1,) * (value.dim() - 1)
            gradient = gradients[name]
            if name not in self.undecayed:
                gradient = gradient + self.weight_decay.view(shape) * value
            first, second = self.first[name], self.second[name]
            broadcast = [factor.view(shape).to(value.dtype) for factor in factors]
            value.sub_(adam_step(gradient, first, second, *broadcast))

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
    """SGD with momentum and weight decay, as `torch.optim.SGD`, over stacked tensors."""

    def __init__(self, parameters: Mapping[str, Tensor], weight_decay: Tensor) -> None:
        self.weight_decay = weight_decay  # [runs]
        self.momentum = {name: torch.zeros_like(value) for name, value in parameters.items()}

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
            is_active = active.view(shape) > 0
            gradient = gradients[name] + self.weight_decay.view(shape) * value
            momentum = self.momentum[name]
            momentum.copy_(torch.where(is_active, MOMENTUM * momentum + gradient, momentum))
            value.sub_(torch.where(is_active, rate.view(shape) * momentum, 0.0))

    def state(self) -> dict[str, Tensor]:
        """Return all tensors of a checkpoint."""
        return dict(self.momentum)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore the tensors of a checkpoint."""
        for name, value in self.momentum.items():
            value.copy_(state[name])
