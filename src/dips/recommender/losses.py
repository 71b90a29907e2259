"""How far off a prediction is. Pointwise losses see one output; the softmax sees all items.

`output` is what a recommender predicts for an item, `rating` what the user gave. `slope` is the
derivative of `value` in the output, written out: the closed forms of the inner loop need it.
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

from dips.errors import ConfigError


class Loss(ABC):
    """A differentiable measure of error on one interaction."""

    channels: int = 1
    """How many numbers a recommender puts out per item."""
    listwise: bool = False
    """Whether an interaction is judged against all items rather than by its rating."""

    @abstractmethod
    def value(self, output: Tensor, rating: Tensor) -> Tensor:
        """The loss, in the shape of `rating`."""

    @abstractmethod
    def slope(self, output: Tensor, rating: Tensor) -> Tensor:
        """The derivative of `value` in `output`, in the shape of `output`."""

    def estimate(self, output: Tensor) -> Tensor:
        """The rating that an output predicts."""
        return output


@final
@dataclass(frozen=True)
class SquaredError(Loss):
    """Real-valued ratings: (output - rating)^2."""

    def value(self, output: Tensor, rating: Tensor) -> Tensor:
        """The square."""
        return (output - rating) ** 2

    def slope(self, output: Tensor, rating: Tensor) -> Tensor:
        """Twice the error."""
        return 2 * (output - rating)


@final
@dataclass(frozen=True)
class BinaryCrossEntropy(Loss):
    """Binary ratings: did the user like it, that is, rate it above the threshold?"""

    threshold: float = 0.5

    def liked(self, rating: Tensor) -> Tensor:
        """1 where the rating is above the threshold, else 0."""
        return (rating > self.threshold).to(rating.dtype)

    def value(self, output: Tensor, rating: Tensor) -> Tensor:
        """The logistic loss of the output as a logit."""
        return functional.softplus(output) - output * self.liked(rating)

    def slope(self, output: Tensor, rating: Tensor) -> Tensor:
        """Predicted minus actual probability."""
        return output.sigmoid() - self.liked(rating)

    def estimate(self, output: Tensor) -> Tensor:
        """The probability of a like."""
        return output.sigmoid()


@final
@dataclass(frozen=True)
class CategoricalCrossEntropy(Loss):
    """Star ratings as classes: one logit for each value that a rating can take."""

    stars: tuple[float, ...]

    @property
    def channels(self) -> int:  # type: ignore[override]
        """One output per star."""
        return len(self.stars)

    def value(self, output: Tensor, rating: Tensor) -> Tensor:
        """Minus the log-probability of the given stars; `output` [..., stars]."""
        chosen = self.one_hot(rating, output.dtype)
        return output.logsumexp(-1) - (output * chosen).sum(-1)

    def slope(self, output: Tensor, rating: Tensor) -> Tensor:
        """Predicted minus actual probabilities."""
        return output.softmax(-1) - self.one_hot(rating, output.dtype)

    def estimate(self, output: Tensor) -> Tensor:
        """The mean of the predicted distribution of stars."""
        return output.softmax(-1) @ _constant(self.stars, output.dtype, output.device)

    def one_hot(self, rating: Tensor, dtype: torch.dtype) -> Tensor:
        """[..., stars] 1 at the nearest star."""
        values = _constant(self.stars, rating.dtype, rating.device)
        nearest = (rating[..., None] - values).abs().argmin(-1)
        classes = torch.arange(len(self.stars), device=rating.device)
        return (nearest[..., None] == classes).to(dtype)


@final
@dataclass(frozen=True)
class FullSoftmax(Loss):
    """Implicit data: the next item against all items. `output` holds logits of all items."""

    listwise: bool = True

    def value(self, output: Tensor, rating: Tensor) -> Tensor:
        """Minus the log-probability; here `rating` [..., n] is the item itself."""
        return output.logsumexp(-1)[..., None] - output.gather(-1, rating)

    def slope(self, output: Tensor, rating: Tensor) -> Tensor:
        """Probabilities minus the indicator of the item; [..., n, items]."""
        classes = torch.arange(output.shape[-1], device=output.device)
        return output.softmax(-1)[..., None, :] - (rating[..., None] == classes).to(output.dtype)


@cache
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


EXPLICIT = ("mse", "bce", "cce")
IMPLICIT = ("softmax",)


def make_loss(name: str, low: float = 0.0, high: float = 1.0, stars: Sequence[float] = ()) -> Loss:
    """The loss of this name, for ratings from `low` to `high` or of these `stars`."""
    if name == "softmax":
        return FullSoftmax()
    if name == "mse":
        return SquaredError()
    if name == "bce":
        return BinaryCrossEntropy((low + high) / 2)
    if name == "cce":
        return CategoricalCrossEntropy(tuple(stars))
    known = ", ".join((*EXPLICIT, *IMPLICIT))
    raise ConfigError(f"unknown loss '{name}': choose one of {known}")
