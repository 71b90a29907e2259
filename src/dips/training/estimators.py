"""Estimators of the policy gradient through a discrete choice, by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from dips.credit.base import CreditAssignment
from dips.credit.decisions import CreditedDecisions, DecisionInputs
from dips.errors import ConfigError, choose_from
from dips.numerics.straight_through import gumbel_keep, log_removal, soft_keep
from dips.sketch.selection import gumbel_noise


class Estimator(ABC):
    """Estimates the gradient of the loss with respect to scores, through a discrete choice.

    The estimate is the gradient of a surrogate: the sum over decisions of `surrogate`, where the
    value from `value` is a constant.

    Example:
        >>> make_estimator("straight-through")
        StraightThrough()
    """

    uses_dropout: ClassVar[bool] = False
    """Whether scores may be computed with dropout. Sampled choices were made without."""

    def value(self, credit: CreditAssignment, batch: CreditedDecisions) -> Tensor:
        """Return the constant factor of each decision in the surrogate: credit, or advantage.

        Args:
            credit: Form of credit assignment.
            batch: Decisions, and the predictions that give them credit.

        Returns:
            [runs * decisions, candidates] credit, or [runs * decisions] advantages.
        """
        return credit.credit(batch)

    @abstractmethod
    def surrogate(self, scores: Tensor, inputs: DecisionInputs, value: Tensor, size: int) -> Tensor:
        """Return one term per decision whose gradient estimates that of the loss.

        Args:
            scores: Scores under the current parameters, [runs * decisions, candidates].
            inputs: Decisions with their recorded choices.
            value: From `value`.
            size: Sketch size K.

        Returns:
            [runs * decisions], differentiable in the scores.
        """


@final
@dataclass(frozen=True)
class StraightThrough(Estimator):
    """The paper's estimator: a hard choice has the slope of softmax (Eq. 4) or Top-K (Eq. 5)."""

    uses_dropout: ClassVar[bool] = True

    def surrogate(self, scores: Tensor, inputs: DecisionInputs, value: Tensor, size: int) -> Tensor:
        """Return credit times relaxed weights, summed over candidates."""
        present = inputs.candidates.present
        soft = soft_keep(scores, present, size)
        return (value * torch.where(present, soft, 0.0)).sum(1)


@final
@dataclass(frozen=True)
class Gumbel(Estimator):
    """Straight-through Gumbel softmax around the noise of the recorded choice."""

    temperature: float = 1.0

    def surrogate(self, scores: Tensor, inputs: DecisionInputs, value: Tensor, size: int) -> Tensor:
        """Return credit times relaxed weights, summed over candidates."""
        present = inputs.candidates.present
        noise = gumbel_noise(inputs.candidates)
        soft = gumbel_keep(scores, noise, present, size, self.temperature)
        return (value * torch.where(present, soft, 0.0)).sum(1)


@final
@dataclass(frozen=True)
class Reinforce(Estimator):
    """REINFORCE; the mean loss of the batch is subtracted (variance reduction)."""

    def value(self, credit: CreditAssignment, batch: CreditedDecisions) -> Tensor:
        """Return advantages: losses after each decision, less the mean loss per prediction."""
        losses, places = batch.losses, batch.prediction_places
        owner, runs = batch.inputs.owner, len(losses)
        there = (places >= 0).to(losses.dtype)  # [runs, decisions, longest period]
        later = losses.gather(1, places.clamp_min(0).flatten(1)).view(there.shape) * there
        total = credit.returns(later.sum(2).flatten(), owner)
        count = credit.returns(there.sum(2).flatten(), owner)
        mean = later.sum((1, 2)) / there.sum((1, 2)).clamp_min(1)  # [runs]
        return total - count * mean.repeat_interleave(len(owner) // runs)

    def surrogate(self, scores: Tensor, inputs: DecisionInputs, value: Tensor, size: int) -> Tensor:
        """Return advantages times log-probabilities of the recorded removals."""
        present = inputs.candidates.present
        dropped = (present & ~inputs.kept).long().argmax(1)
        log_probability = log_removal(scores, present, dropped)
        return value * torch.where(inputs.owner >= 0, log_probability, 0.0)


ESTIMATORS: dict[str, type[Estimator]] = {
    "straight-through": StraightThrough,
    "gumbel": Gumbel,
    "reinforce": Reinforce,
}


def make_estimator(name: str) -> Estimator:
    """Return an estimator.

    Args:
        name: straight-through, gumbel or reinforce.

    Raises:
        ConfigError: If the name is unknown.

    Example:
        >>> make_estimator("gumbel")
        Gumbel(temperature=1.0)
    """
    if name not in ESTIMATORS:
        raise ConfigError(f"unknown estimator '{name}': {choose_from(name, ESTIMATORS)}")
    return ESTIMATORS[name]()


def check_combination(estimator: str, credit: str, periods: Sequence[int], selection: str) -> None:
    """Raise if an estimator does not support the form of credit, the periods or the selection.

    | estimator        | credit                      | periods | selection       |
    |------------------|-----------------------------|---------|-----------------|
    | straight-through | all                         | all     | greedy, sampled |
    | gumbel           | all                         | only 1  | sampled         |
    | reinforce        | identity, discount          | only 1  | sampled         |

    Args:
        estimator: Name of the estimator.
        credit: Name of the form of credit assignment.
        periods: Interactions between refreshes.
        selection: greedy or sampled.

    Raises:
        ConfigError: If the combination is not supported. The message names the fix.

    Example:
        >>> check_combination("straight-through", "survival", [4], "greedy")
    """
    make_estimator(estimator)
    if estimator == "straight-through":
        return
    if any(period != 1 for period in periods):
        raise ConfigError(
            f"estimator '{estimator}' works online only: set every = 1, "
            "or estimator = straight-through"
        )
    if selection != "sampled":
        raise ConfigError(
            f"estimator '{estimator}' needs sampled choices: set selection = sampled, "
            "or estimator = straight-through"
        )
    if estimator == "reinforce" and credit not in ("identity", "discount"):
        raise ConfigError(
            f"estimator 'reinforce' uses losses, and credit '{credit}' needs their gradients: "
            "set credit = identity or discount"
        )
