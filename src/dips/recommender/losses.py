"""Losses: pointwise (ratings), softmax over all items, and sampled (with negatives).

`output` is a recommender's prediction for an item, `rating` the user's rating of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from dips.errors import ConfigError, choose_from
from dips.recommender.settings import EXPLICIT, IMPLICIT


class Loss(ABC):
    """A differentiable loss of one interaction, with its derivative in closed form."""

    channels: int = 1
    """Number of outputs of a recommender per item."""
    listwise: bool = False
    """Whether the loss compares the item with other items, rather than its rating (implicit)."""

    @abstractmethod
    def value(self, output: Tensor, rating: Tensor) -> Tensor:
        """Return the loss, in the shape of `rating`."""

    @abstractmethod
    def derivative(self, output: Tensor, rating: Tensor) -> Tensor:
        """Return the derivative of `value` in `output`, in the shape of `output`."""

    def estimate(self, output: Tensor) -> Tensor:
        """Return the rating that an output predicts."""
        return output


@final
@dataclass(frozen=True)
class SquaredError(Loss):
    """Squared error of a real-valued rating: (output - rating)^2."""

    def value(self, output: Tensor, rating: Tensor) -> Tensor:
        """Return (output - rating)^2."""
        return (output - rating) ** 2

    def derivative(self, output: Tensor, rating: Tensor) -> Tensor:
        """Return 2 (output - rating)."""
        return 2 * (output - rating)


@final
@dataclass(frozen=True)
class BinaryCrossEntropy(Loss):
    """Logistic loss of a binary label: whether the rating is above the threshold."""

    threshold: float = 0.5

    def liked(self, rating: Tensor) -> Tensor:
        """Return 1 where the rating is above the threshold, else 0."""
        return (rating > self.threshold).to(rating.dtype)

    def value(self, output: Tensor, rating: Tensor) -> Tensor:
        """Return the logistic loss; the output is a logit."""
        return functional.softplus(output) - output * self.liked(rating)

    def derivative(self, output: Tensor, rating: Tensor) -> Tensor:
        """Return the predicted probability minus the label."""
        return output.sigmoid() - self.liked(rating)

    def estimate(self, output: Tensor) -> Tensor:
        """Return the predicted probability of a rating above the threshold."""
        return output.sigmoid()


@final
@dataclass(frozen=True)
class CategoricalCrossEntropy(Loss):
    """Cross-entropy over the values that a rating can take: one logit for each value."""

    rating_values: tuple[float, ...]

    @property
    def channels(self) -> int:  # type: ignore[override]
        """Number of rating values."""
        return len(self.rating_values)

    def value(self, output: Tensor, rating: Tensor) -> Tensor:
        """Return minus the log-probability of the rating; `output` [..., rating values]."""
        chosen = self.one_hot(rating, output.dtype)
        return output.logsumexp(-1) - (output * chosen).sum(-1)

    def derivative(self, output: Tensor, rating: Tensor) -> Tensor:
        """Return the predicted probabilities minus the one-hot rating."""
        return output.softmax(-1) - self.one_hot(rating, output.dtype)

    def estimate(self, output: Tensor) -> Tensor:
        """Return the mean of the predicted distribution over rating values."""
        return output.softmax(-1) @ _constant(self.rating_values, output.dtype, output.device)

    def one_hot(self, rating: Tensor, dtype: torch.dtype) -> Tensor:
        """Return 1 at the nearest rating value, else 0; [..., rating values]."""
        values = _constant(self.rating_values, rating.dtype, rating.device)
        nearest = (rating[..., None] - values).abs().argmin(-1)
        classes = torch.arange(len(self.rating_values), device=rating.device)
        return (nearest[..., None] == classes).to(dtype)


@final
@dataclass(frozen=True)
class FullSoftmax(Loss):
    """Cross-entropy of the next item among all items; `output` [..., items] holds all logits."""

    listwise: bool = True

    def value(self, output: Tensor, rating: Tensor) -> Tensor:
        """Return minus the log-probability; here `rating` [..., n] holds the items."""
        return output.logsumexp(-1)[..., None] - output.gather(-1, rating)

    def derivative(self, output: Tensor, rating: Tensor) -> Tensor:
        """Return probabilities minus the one-hot item, [..., n, items]."""
        classes = torch.arange(output.shape[-1], device=output.device)
        return output.softmax(-1)[..., None, :] - (rating[..., None] == classes).to(output.dtype)


NEGATIVES = 256
"""Default number of negatives."""
MASKED_SCORE = -1e4
"""Score of a negative that is the item itself: its gradient vanishes."""


@dataclass(frozen=True)
class SampledLoss(Loss, ABC):
    """A loss that compares the next item with sampled other items (negatives).

    Here `output` [..., n] holds the outputs of the items, and `rating` [..., n, negatives] those
    of the negatives.
    """

    negatives: int = NEGATIVES
    """Number of negatives."""
    listwise: bool = True

    def derivative(self, output: Tensor, rating: Tensor) -> Tensor:
        """Return the derivative in the output of the item itself, [..., n]."""

        def total(own: Tensor) -> Tensor:
            return self.value(own, rating).sum()

        result: Tensor = torch.func.grad(total)(output)
        return result


@final
@dataclass(frozen=True)
class SampledSoftmax(SampledLoss):
    """Cross-entropy of the item among itself and the negatives (sampled softmax)."""

    def value(self, output: Tensor, rating: Tensor) -> Tensor:
        """Return minus the log-probability of the item."""
        return functional.softplus(rating.logsumexp(-1) - output)


@final
@dataclass(frozen=True)
class BPR(SampledLoss):
    """Bayesian personalised ranking: logistic loss of item against negative (Rendle, 2009)."""

    def value(self, output: Tensor, rating: Tensor) -> Tensor:
        """Return -log sigmoid(item - negative), mean over the negatives."""
        return functional.softplus(rating - output[..., None]).mean(-1)


@final
@dataclass(frozen=True)
class TOP1(SampledLoss):
    """Smoothed relative rank with a regulariser on the scores of negatives (GRU4Rec, 2016)."""

    def value(self, output: Tensor, rating: Tensor) -> Tensor:
        """Return sigmoid(negative - item) + sigmoid(negative^2), mean over the negatives."""
        return ((rating - output[..., None]).sigmoid() + (rating**2).sigmoid()).mean(-1)


@final
@dataclass(frozen=True)
class BPRMax(SampledLoss):
    """BPR with negatives weighted by a softmax over their scores (Top-k gains, 2018)."""

    regularisation: float = 0.5
    """Weight of the squared scores of negatives."""

    def value(self, output: Tensor, rating: Tensor) -> Tensor:
        """Return minus the log of the weighted sigmoids, in logs to avoid underflow."""
        wins = functional.logsigmoid(output[..., None] - rating)
        log_probability = (rating.log_softmax(-1) + wins).logsumexp(-1)
        return self.regularisation * (rating.softmax(-1) * rating**2).sum(-1) - log_probability


@final
@dataclass(frozen=True)
class TOP1Max(SampledLoss):
    """TOP1 with negatives weighted by a softmax over their scores (Top-k gains, 2018)."""

    def value(self, output: Tensor, rating: Tensor) -> Tensor:
        """Return the terms of TOP1, weighted by a softmax over the negatives."""
        terms = (rating - output[..., None]).sigmoid() + (rating**2).sigmoid()
        return (rating.softmax(-1) * terms).sum(-1)


@cache
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


SAMPLED_LOSSES: dict[str, type[SampledLoss]] = {
    "bpr": BPR, "top1": TOP1, "bpr-max": BPRMax, "top1-max": TOP1Max,
}  # fmt: skip
"""Losses with negatives, by name."""


def make_loss(
    name: str,
    low: float = 0.0,
    high: float = 1.0,
    rating_values: Sequence[float] = (),
    negatives: int = 0,
) -> Loss:
    """Return the loss with this name.

    Args:
        name: One of EXPLICIT or IMPLICIT.
        low: Lowest rating; `bce` puts its threshold in the middle between low and high.
        high: Highest rating.
        rating_values: The values that a rating can take, for `cce`.
        negatives: Number of negatives; 0: all items for `softmax`, the default for others.

    Raises:
        ConfigError: If the name is unknown.
    """
    if name == "softmax":
        return SampledSoftmax(negatives) if negatives else FullSoftmax()
    if name in SAMPLED_LOSSES:
        return SAMPLED_LOSSES[name](negatives) if negatives else SAMPLED_LOSSES[name]()
    if name == "mse":
        return SquaredError()
    if name == "bce":
        return BinaryCrossEntropy((low + high) / 2)
    if name == "cce":
        return CategoricalCrossEntropy(tuple(rating_values))
    raise ConfigError(f"unknown loss '{name}': {choose_from(name, (*EXPLICIT, *IMPLICIT))}")
