"""What a recommender is: it adapts a user's vector to a sketch, and predicts from it.

A recommender of one's own needs one method, `predict`; reading by gradient descent is given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from dips.numerics.descent import Rounding, descend, keep
from dips.numerics.influence import influences
from dips.recommender.losses import FAR, Contrast, Loss, SampledSoftmax

T = TypeVar("T")
CURVE_STEPS = 12
"""Conjugate-gradient steps with the Hessian in a user's vector; exact up to 11 scalar losses."""
COMFORTABLE = 4
"""Up to this many entries the inner rate is as given; beyond, it falls as 1 / entries."""


class Evidence(NamedTuple):
    """A weighted sketch: what the recommender reads."""

    item: Tensor  # [rows, n] int64
    rating: Tensor  # [rows, n]
    weight: Tensor  # [rows, n]: z; 0 in empty slots
    slots: Tensor  # [rows]: how many entries the sketch holds; a constant, whatever the weights
    age: Tensor  # [rows, n] steps since each, as numbers; 0 for the newest of all that happened
    repeats: Tensor  # [rows, n] how often each item was met while it was remembered, as numbers

    @classmethod
    def new(cls, item: Tensor, rating: Tensor, weight: Tensor, slots: Tensor) -> Evidence:
        """A sketch of interactions that have just happened, each for the first time."""
        once = torch.ones_like(weight)
        return cls(item, rating, weight, slots, torch.zeros_like(weight), once)


class Recommender(nn.Module, ABC):
    """A differentiable recommender with a vector per user, adapted from a shared prior.

    Subclasses implement `predict`; an `__init__` of theirs calls this one. A user's vector has
    `user_dim` entries, `dim` unless given. `inner_lr` and `offset` (the mean rating for squared
    error, else 0) are buffers, so that runs that differ in them can be stacked. So are the
    `negatives` of a loss that has some: training draws them anew for every step, and reading and
    deciding take the last, so that they are the same for everyone. A softmax knows the `chances`
    they had, in logs: the rarer the draw, the more an item stands for.
    """

    undecayed: ClassVar[tuple[str, ...]] = ("bias", "loading", "logit_scale")
    """Parameters that weight decay leaves alone: a bias of 0 is nobody's prior."""
    by_item: ClassVar[tuple[str, ...]] = ()
    """Tables with a row for each item, of which a loss of single items reads the named rows only.

    Where there are very many items, training then moves just those rows; none: always all.
    """
    has_recency_decay: bool = False
    """Whether what happened long ago counts less as it is read."""
    counts_repeats: bool = False
    """Whether what happened often counts more as it is read."""
    filters_sketch: bool = False
    """Whether what was read goes to the end of the ranking: it does not come back."""
    user_prior: nn.Parameter
    inner_lr: Tensor
    offset: Tensor
    negatives: Tensor
    chances: Tensor

    def __init__(
        self,
        *,
        items: int,
        loss: Loss,
        dim: int = 32,
        user_dim: int | None = None,
        offset: float = 0.0,
        inner_lr: float = 0.1,
        inner_steps: int = 10,
        prior_penalty: float = 0.0,
    ) -> None:
        super().__init__()
        self.items = items
        self.loss = loss
        self.inner_steps = inner_steps
        self.prior_penalty = prior_penalty
        self.user_prior = nn.Parameter(torch.zeros(user_dim or dim))
        self.register_buffer("inner_lr", torch.tensor(float(inner_lr)))
        self.register_buffer("offset", torch.tensor(float(offset)))
        if isinstance(loss, Contrast):
            count = min(loss.negatives, items)
            self.register_buffer("negatives", torch.arange(count) * items // count)
        if isinstance(loss, SampledSoftmax):
            self.register_buffer("chances", torch.full((count,), count / items).log())

    @abstractmethod
    def predict(self, user: Tensor, items: Tensor) -> Tensor:
        """Outputs for users [rows, dim] and items [rows, n]: [rows, n], or [rows, n, channels]."""

    def predict_all(self, user: Tensor) -> Tensor:
        """Outputs for every item: [rows, items]."""
        return self.predict_some(user, torch.arange(self.items, device=user.device))

    def predict_some(self, user: Tensor, items: Tensor) -> Tensor:
        """Outputs for the same items [n] for all users: [rows, n]."""
        return self.predict(user, items.expand(user.shape[0], -1))

    def strength(self, age: Tensor, repeats: Tensor) -> Tensor:
        """What an interaction of this age, met so often, counts for: 1, unless overridden."""
        del repeats
        return torch.ones_like(age)

    def counted(self, evidence: Evidence, rounding: Rounding = keep) -> Tensor:
        """[rows, n] the weights as they count in the inner loop."""
        if not (self.has_recency_decay or self.counts_repeats):
            return evidence.weight
        return evidence.weight * rounding(self.strength(evidence.age, evidence.repeats))

    def start(self, rows: int) -> Tensor:
        """[rows, dim] users' vectors before anything is read."""
        return self.user_prior.expand(rows, -1)

    @property
    def breadth(self) -> int:
        """Numbers in the widest intermediate of a prediction for one row, for pieces that fit."""
        return self.items * len(self.user_prior) if self.loss.listwise else 64

    def offered(self, scores: Tensor, item: Tensor, weight: Tensor) -> Tensor:
        """[rows, items] scores as they rank, after a sketch with these entries [rows, n]."""
        return struck(scores, item, weight) if self.filters_sketch else scores

    def embedding(self, items: Tensor) -> Tensor:
        """A detached vector per item, for policies that look at items; none unless overridden."""
        return torch.zeros(*items.shape, 0, dtype=self.user_prior.dtype, device=items.device)

    def losses(self, user: Tensor, items: Tensor, ratings: Tensor) -> Tensor:
        """[rows, n] loss of each interaction under the user's vector."""
        if isinstance(self.loss, Contrast):
            return self.contrast(self.loss.value, user, items)
        if self.loss.listwise:
            return self.loss.value(self.predict_all(user), items)
        return self.loss.value(self.predict(user, items), ratings)

    def contrast(
        self, function: Callable[[Tensor, Tensor], Tensor], user: Tensor, items: Tensor
    ) -> Tensor:
        """[rows, n] a function of the items' outputs and those of the negatives, item by item."""
        others = self.predict_some(user, self.negatives)[:, None, :]
        if isinstance(self.loss, SampledSoftmax):  # then their sum is about that of all items
            others = others - self.chances
        same = self.negatives == items[:, :, None]
        return function(self.predict(user, items), others.masked_fill(same, FAR))

    def heard(self, user: Tensor, items: Tensor, ratings: Tensor) -> Tensor:
        """[rows, n] what reading an entry lowers: its loss, unless overridden."""
        return self.losses(user, items, ratings)

    def read(self, evidence: Evidence, rounding: Rounding = keep) -> Tensor:
        """[rows, dim] the user's vector after the inner loop, by automatic differentiation."""

        weight = self.counted(evidence, rounding)

        def objective(user: Tensor) -> Tensor:
            return (self.heard(user, evidence.item, evidence.rating) * weight).sum(1)

        start = self.start(len(evidence.item))
        rate = self.rate(evidence)
        return descend(objective, start, rate, self.inner_steps, self.prior_penalty, rounding)

    def slope(self, user: Tensor, evidence: Evidence) -> Tensor:
        """[rows, dim] gradient in the user's vector of what is heard, weighted and summed."""

        weight = self.counted(evidence)

        def total(vector: Tensor) -> Tensor:
            return (self.heard(vector, evidence.item, evidence.rating) * weight).sum()

        result: Tensor = torch.func.grad(total)(user)
        return result

    def gradients(self, user: Tensor, items: Tensor, ratings: Tensor) -> Tensor:
        """[rows, n, dim] gradient of each interaction's loss in the user's vector."""
        return _slopes(self.losses, user, items, ratings)

    def influences(
        self, user: Tensor, items: Tensor, ratings: Tensor, weight: Tensor, damping: float
    ) -> Tensor:
        """[rows, n] effect of each interaction's weight, as it is read, on their summed loss."""

        def total(point: Tensor) -> Tensor:
            return (self.losses(point, items, ratings) * weight).sum()

        def product(vector: Tensor) -> Tensor:
            along = torch.func.grad(lambda point: (torch.func.grad(total)(point) * vector).sum())
            result: Tensor = along(user)
            return result

        heard = _slopes(self.heard, user, items, ratings)
        return influences(heard, torch.func.grad(total)(user), product, damping, CURVE_STEPS)

    def rate(self, evidence: Evidence) -> Tensor:
        """[rows] step size: a constant of how many entries there are, never of their weights.

        A rate that suits 4 entries diverges at 32: the curvature grows with the sum.
        """
        shrink = COMFORTABLE / evidence.slots.clamp_min(COMFORTABLE)
        return self.inner_lr * shrink.to(self.inner_lr.dtype)

    def forward(self, task: Callable[[Recommender], T]) -> T:
        """Run any function of this module: `functional_call` then swaps the parameters under it."""
        return task(self)


def struck(scores: Tensor, item: Tensor, weight: Tensor) -> Tensor:
    """Scores [rows, items] with the entries [rows, n] of a sketch below everything else.

    What is not a number stays so, an item may stand there twice, and a weight of 0 strikes nothing.
    """
    lowered = torch.where(weight > 0, -torch.inf, 0.0).to(scores.dtype)
    return scores.scatter_add(1, item, lowered)


def _slopes(
    function: Callable[..., Tensor], user: Tensor, items: Tensor, ratings: Tensor
) -> Tensor:
    """[rows, n, dim] gradients in the user's vector of a function [rows, n] of interactions."""

    def alone(vector: Tensor, item: Tensor, rating: Tensor) -> Tensor:
        return function(vector[None], item[None], rating[None])[0]

    jacobian: Tensor = torch.func.vmap(torch.func.jacrev(alone))(user, items, ratings)
    return jacobian
