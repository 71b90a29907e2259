"""How far off a prediction is.

Pointwise losses see one output, the softmax sees all items, contrasts see a sample of them.

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


NEGATIVES = 256
"""How many there are, where nobody says."""
FAR = -1e4
"""The score of a negative that is the item itself: it loses to everything and moves nothing."""


@dataclass(frozen=True)
class Contrast(Loss, ABC):
    """Implicit data: the next item against a sample of items that it is not (negatives).

    Here `output` [..., n] is of the items themselves and `rating` [..., n, negatives] holds the
    outputs of the negatives. With all items as negatives nothing is left to chance.
    """

    negatives: int = NEGATIVES
    """How many items an item is compared with."""
    listwise: bool = True

    def slope(self, output: Tensor, rating: Tensor) -> Tensor:
        """The derivative in the item's own output."""

        def total(own: Tensor) -> Tensor:
            return self.value(own, rating).sum()

        result: Tensor = torch.func.grad(total)(output)
        return result


@final
@dataclass(frozen=True)
class SampledSoftmax(Contrast):
    """Cross-entropy of the item among itself and the negatives."""

    def value(self, output: Tensor, rating: Tensor) -> Tensor:
        """Minus the log-probability."""
        return functional.softplus(rating.logsumexp(-1) - output)


@final
@dataclass(frozen=True)
class BPR(Contrast):
    """Bayesian personalised ranking: how likely is it that the item beats a negative?"""

    def value(self, output: Tensor, rating: Tensor) -> Tensor:
        """Minus the log of that chance, mean over the negatives."""
        return functional.softplus(rating - output[..., None]).mean(-1)


@final
@dataclass(frozen=True)
class TOP1(Contrast):
    """Where the item ranks, smoothed; scores of negatives are drawn to 0 (GRU4Rec, 2016)."""

    def value(self, output: Tensor, rating: Tensor) -> Tensor:
        """Chance that a negative beats the item, and its squared score squashed; their mean."""
        return ((rating - output[..., None]).sigmoid() + (rating**2).sigmoid()).mean(-1)


@final
@dataclass(frozen=True)
class BPRMax(Contrast):
    """BPR against the strongest negatives, softly chosen (Top-k gains, 2018)."""

    pull: float = 0.5
    """Weight of the pull of the strongest negatives' scores towards 0."""

    def value(self, output: Tensor, rating: Tensor) -> Tensor:
        """Minus the log of the chance to beat them; in logs, so that nothing underflows."""
        wins = functional.logsigmoid(output[..., None] - rating)
        chance = (rating.log_softmax(-1) + wins).logsumexp(-1)
        return self.pull * (rating.softmax(-1) * rating**2).sum(-1) - chance


@final
@dataclass(frozen=True)
class TOP1Max(Contrast):
    """TOP1 against the strongest negatives, softly chosen (Top-k gains, 2018)."""

    def value(self, output: Tensor, rating: Tensor) -> Tensor:
        """The terms of TOP1, weighted by a softmax over the negatives."""
        terms = (rating - output[..., None]).sigmoid() + (rating**2).sigmoid()
        return (rating.softmax(-1) * terms).sum(-1)


@cache
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


EXPLICIT = ("mse", "bce", "cce")
CONTRASTS: dict[str, type[Contrast]] = {
    "bpr": BPR, "top1": TOP1, "bpr-max": BPRMax, "top1-max": TOP1Max,
}  # fmt: skip
"""Losses that need negatives, by name."""
IMPLICIT = ("softmax", *CONTRASTS)


def make_loss(
    name: str,
    low: float = 0.0,
    high: float = 1.0,
    stars: Sequence[float] = (),
    negatives: int = 0,
) -> Loss:
    """The loss of this name, for ratings from `low` to `high` or of these `stars`.

    With so many `negatives`; without, the softmax is over all items, and others take their own.
    """
    if name == "softmax":
        return SampledSoftmax(negatives) if negatives else FullSoftmax()
    if name in CONTRASTS:
        return CONTRASTS[name](negatives) if negatives else CONTRASTS[name]()
    if name == "mse":
        return SquaredError()
    if name == "bce":
        return BinaryCrossEntropy((low + high) / 2)
    if name == "cce":
        return CategoricalCrossEntropy(tuple(stars))
    known = ", ".join((*EXPLICIT, *IMPLICIT))
    raise ConfigError(f"unknown loss '{name}': choose one of {known}")
