"""The base class of recommenders: adapt a user vector to a weighted sketch, then predict from it.

A subclass needs one method, `predict`. The inner loop by gradient descent is given here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from dips.numerics.descent import Rounding, descend, identity
from dips.numerics.fixed_point import STATE_BITS, quantize
from dips.numerics.influence import influences
from dips.numerics.log_sum_exp import FILTERED_LOGIT
from dips.recommender.losses import (
    MASKED_SCORE,
    Loss,
    SampledLoss,
    SampledSoftmax,
    SquaredError,
)

T = TypeVar("T")
CG_STEPS = 12
"""Conjugate-gradient steps with the Hessian in a user vector; exact for up to 11 scalar losses."""
FULL_RATE_ENTRIES = 4
"""Up to this many entries the step size is `inner_lr`; beyond, it falls as 1 / entries."""


class Evidence(NamedTuple):
    """Weighted sketch entries in the form that a recommender reads."""

    item: Tensor  # [rows, n] int64: item, or token where time is side information
    rating: Tensor  # [rows, n]
    weight: Tensor  # [rows, n]: z; 0 in empty slots
    slots: Tensor  # [rows]: number of entries in the sketch; a constant, whatever the weights
    age: Tensor  # [rows, n] steps since each interaction, as floats; the user's newest has age 0
    repeats: Tensor  # [rows, n] repeat count of each entry's item while kept, as floats

    @classmethod
    def new(cls, item: Tensor, rating: Tensor, weight: Tensor, slots: Tensor) -> Evidence:
        """Return entries of age 0 whose items occurred once."""
        once = torch.ones_like(weight)
        return cls(item, rating, weight, slots, torch.zeros_like(weight), once)


class Recommender(nn.Module, ABC):
    """A differentiable recommender with one vector per user, adapted from a shared prior.

    A subclass implements `predict`. Its `__init__`, if it has one, calls this one.

    Outputs are standardised ratings where ratings are predicted with squared error. `standardise`
    converts ratings to this unit, and `estimate` converts outputs back to the unit of the data.

    `inner_lr`, `offset`, `rating_center` and `rating_spread` are buffers, so runs that differ in
    them can be stacked. A sampled loss
    adds the buffer `negatives` [negatives]: training draws new ones for every step; decisions and
    service use the last ones. A sampled softmax adds `log_q` [negatives], the log of the expected
    number of times each negative is drawn (logQ correction).

    Args:
        items: Number of items.
        loss: The training loss.
        dim: Length of an item vector.
        user_dim: Length of a user vector; `dim` by default.
        offset: Constant that a subclass may add to its outputs. Runs leave it at 0.
        rating_center: Mean of the training ratings for squared error, else 0.
        rating_spread: Standard deviation of the training ratings for squared error, else 1.
        inner_lr: Step size alpha of the inner loop (Eq. 7).
        inner_steps: Number of steps of the inner loop.
        prior_penalty: Weight of the regulariser |user - user_prior|^2 (Eq. 2).

    Example:
        >>> import torch
        >>> from dips.recommender.losses import SquaredError
        >>> class ItemMean(Recommender):
        ...     def __init__(self, **settings):
        ...         super().__init__(**settings)
        ...         self.bias = torch.nn.Parameter(torch.zeros(self.items, 1))
        ...     def predict(self, user, items):
        ...         bias = torch.nn.functional.embedding(items, self.bias)[..., 0]
        ...         return bias + user[:, :1]
        >>> model = ItemMean(items=3, loss=SquaredError(), dim=1, rating_center=3.5)
        >>> output = model.predict(model.initial_user(2), torch.tensor([[0, 1], [2, 2]]))
        >>> model.estimate(output).tolist()
        [[3.5, 3.5], [3.5, 3.5]]
    """

    no_weight_decay: ClassVar[tuple[str, ...]] = (
        "bias", "user_bias_scale", "repeat_params", "logit_scale",
    )  # fmt: skip
    """Names of parameters without weight decay."""
    item_tables: ClassVar[tuple[str, ...]] = ()
    """Names of tensors with a row per item, of which pointwise losses read only the items' rows.

    With very many items, training then updates just those rows. Empty: always all rows.
    """
    has_recency_decay: bool = False
    """Whether the weight of an entry decays with its age."""
    counts_repeats: bool = False
    """Whether entries count by their repeats: in the inner loop, or in scores of their own."""
    masks_sketch: bool = False
    """Whether items of the sketch are masked in the ranking: they do not repeat."""
    masks_seen: bool = False
    """Whether everything met before is masked in the loss of predictions and in the ranking."""
    user_prior: nn.Parameter
    inner_lr: Tensor
    offset: Tensor
    rating_center: Tensor
    rating_spread: Tensor
    negatives: Tensor
    log_q: Tensor

    def __init__(
        self,
        *,
        items: int,
        loss: Loss,
        dim: int = 32,
        user_dim: int | None = None,
        offset: float = 0.0,
        rating_center: float = 0.0,
        rating_spread: float = 1.0,
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
        for name, value in (("rating_center", rating_center), ("rating_spread", rating_spread)):
            self.register_buffer(name, torch.tensor(float(value), dtype=torch.float64))
        if isinstance(loss, SampledLoss):
            count = min(loss.negatives, items)
            self.register_buffer("negatives", torch.arange(count) * items // count)
        if isinstance(loss, SampledSoftmax):
            self.register_buffer("log_q", torch.full((count,), count / items).log())

    @abstractmethod
    def predict(self, user: Tensor, items: Tensor) -> Tensor:
        """Return outputs for items: a standardised rating, or a logit.

        Args:
            user: User vectors, [rows, user_dim].
            items: Items of each row, [rows, n].

        Returns:
            [rows, n], or [rows, n, channels] for a loss with several channels.
        """

    def standardise(self, rating: Tensor) -> Tensor:
        """Return ratings in the unit of outputs: (rating - rating_center) / rating_spread.

        They are rounded to the fixed-point grid of states, in training as in decisions. Sums are
        then exact, and the rounding of another unit of ratings disappears. Losses of logits
        compare ratings as they are.
        """
        if not isinstance(self.loss, SquaredError):
            return rating
        exact = (rating.double() - self.rating_center) / self.rating_spread
        return quantize(exact, STATE_BITS).to(rating.dtype)

    def estimate(self, output: Tensor) -> Tensor:
        """Return predicted ratings in the unit of the data; for `bce` the probability of a like."""
        found = self.loss.estimate(output)
        return (self.rating_center + self.rating_spread * found.double()).to(found.dtype)

    def predict_all(self, user: Tensor) -> Tensor:
        """Return outputs for every item, [rows, items]."""
        return self.predict_some(user, torch.arange(self.items, device=user.device))

    def predict_some(self, user: Tensor, items: Tensor) -> Tensor:
        """Return outputs [rows, n] for items [n] that are the same for all users."""
        return self.predict(user, items.expand(user.shape[0], -1))

    def weight_factor(self, age: Tensor, repeats: Tensor) -> Tensor:
        """Return what the weight of an entry is multiplied by; 1 unless overridden.

        Args:
            age: Steps since each entry, [rows, n].
            repeats: Repeat count of each entry's item, [rows, n].
        """
        del repeats
        return torch.ones_like(age)

    def effective_weights(self, evidence: Evidence, rounding: Rounding = identity) -> Tensor:
        """Return the weights of entries in the inner loop, [rows, n]: z times `weight_factor`."""
        if not (self.has_recency_decay or self.counts_repeats):
            return evidence.weight
        return evidence.weight * rounding(self.weight_factor(evidence.age, evidence.repeats))

    def initial_user(self, rows: int) -> Tensor:
        """Return user vectors before the inner loop, [rows, user_dim]: the prior."""
        return self.user_prior.expand(rows, -1)

    @property
    def elements_per_row(self) -> int:
        """Number of elements, per row, in the widest intermediate tensor of a prediction."""
        return self.items * len(self.user_prior) if self.loss.listwise else 64

    def filtered_scores(self, scores: Tensor, item: Tensor, weight: Tensor) -> Tensor:
        """Return the scores that rank items, [rows, items], after filtering sketch items.

        With `masks_seen` this is the filter of a service, which does not store histories.

        Args:
            scores: Scores of all items, [rows, items].
            item: Items of each row's sketch, [rows, n].
            weight: Their weights, [rows, n]; 0 filters nothing.
        """
        filters = self.masks_sketch or self.masks_seen
        return mask_items(scores, item, weight) if filters else scores

    def embedding(self, items: Tensor) -> Tensor:
        """Return detached item vectors [rows, n, d] for policies; of length 0 unless overridden."""
        return torch.zeros(*items.shape, 0, dtype=self.user_prior.dtype, device=items.device)

    def log_norm_without(self, user: Tensor, filtered: Tensor) -> Tensor:
        """Return the log of the softmax denominator over the items that are left, [rows].

        Args:
            user: User vectors, [rows, user_dim].
            filtered: Items that each row leaves out, [rows, n]; -1 pads.
        """
        change = torch.where(filtered >= 0, FILTERED_LOGIT, 0.0).to(user.dtype)
        return self.predict_all(user).scatter_add(1, filtered.clamp_min(0), change).logsumexp(1)

    def losses(self, user: Tensor, items: Tensor, ratings: Tensor) -> Tensor:
        """Return the loss of each interaction, [rows, n], for user vectors [rows, user_dim].

        Squared errors are in units of `rating_spread` squared.
        """
        if isinstance(self.loss, SampledLoss):
            return self.with_negatives(self.loss.value, user, items)
        if self.loss.listwise:
            return self.loss.value(self.predict_all(user), items)
        return self.loss.value(self.predict(user, items), self.standardise(ratings))

    def with_negatives(
        self,
        function: Callable[[Tensor, Tensor], Tensor],
        user: Tensor,
        items: Tensor,
        masked: Tensor | None = None,
    ) -> Tensor:
        """Return a function of the items' outputs and the negatives' outputs, [rows, n].

        Args:
            function: Takes outputs [rows, n] and outputs of negatives [rows, n, negatives].
            user: User vectors, [rows, user_dim].
            items: Items of each row, [rows, n].
            masked: Negatives that a row leaves out, [rows, negatives]; None: none.
        """
        others = self.predict_some(user, self.negatives)[:, None, :]
        if isinstance(self.loss, SampledSoftmax):  # then their sum estimates that of all items
            others = others - self.log_q
        gone = self.negatives == items[:, :, None]
        if masked is not None:
            gone = gone | masked[:, None, :]
        return function(self.predict(user, items), others.masked_fill(gone, MASKED_SCORE))

    def inner_loss(self, user: Tensor, items: Tensor, ratings: Tensor) -> Tensor:
        """Return what the inner loop minimises for each entry, [rows, n]; its loss by default."""
        return self.losses(user, items, ratings)

    def read(self, evidence: Evidence, rounding: Rounding = identity) -> Tensor:
        """Return user vectors after the inner loop, [rows, user_dim] (Eq. 7).

        Args:
            evidence: Weighted sketch entries.
            rounding: Applied after each step: the identity in training, the fixed-point grid for
                decisions.
        """

        weight = self.effective_weights(evidence, rounding)

        def objective(user: Tensor) -> Tensor:
            return (self.inner_loss(user, evidence.item, evidence.rating) * weight).sum(1)

        start = self.initial_user(len(evidence.item))
        rate = self.step_size(evidence)
        return descend(objective, start, rate, self.inner_steps, self.prior_penalty, rounding)

    def inner_gradient(self, user: Tensor, evidence: Evidence) -> Tensor:
        """Return the gradient in the user vector of the weighted inner losses, [rows, user_dim]."""

        weight = self.effective_weights(evidence)

        def total(vector: Tensor) -> Tensor:
            return (self.inner_loss(vector, evidence.item, evidence.rating) * weight).sum()

        result: Tensor = torch.func.grad(total)(user)
        return result

    def loss_gradients(self, user: Tensor, items: Tensor, ratings: Tensor) -> Tensor:
        """Return the gradient of each loss in the user vector, [rows, n, user_dim]."""
        return _per_entry_gradients(self.losses, user, items, ratings)

    def influences(
        self, user: Tensor, items: Tensor, ratings: Tensor, weight: Tensor, damping: float
    ) -> Tensor:
        """Return the influence of each entry's weight on the weighted sum of losses (Eq. 11).

        The Hessian is that of the weighted inner losses, because they decide the user vector.

        Args:
            user: User vectors, [rows, user_dim].
            items: Items of the entries, [rows, n].
            ratings: Their ratings, [rows, n].
            weight: Weight of each loss in the sum, [rows, n].
            damping: Added to the diagonal of the Hessian.

        Returns:
            [rows, n].
        """

        def total(point: Tensor) -> Tensor:
            return (self.losses(point, items, ratings) * weight).sum()

        def inner_total(point: Tensor) -> Tensor:
            return (self.inner_loss(point, items, ratings) * weight).sum()

        inner_slope = torch.func.grad(inner_total)

        def product(vector: Tensor) -> Tensor:
            along = torch.func.grad(lambda point: (inner_slope(point) * vector).sum())
            result: Tensor = along(user)
            return result

        entry = _per_entry_gradients(self.inner_loss, user, items, ratings)
        return influences(entry, torch.func.grad(total)(user), product, damping, CG_STEPS)

    def step_size(self, evidence: Evidence) -> Tensor:
        """Return the step size of the inner loop, [rows], from the number of entries alone.

        The curvature grows with the number of entries: a rate for 4 entries diverges at 32. The
        step size must not depend on the weights, or their gradients change.
        """
        shrink = FULL_RATE_ENTRIES / evidence.slots.clamp_min(FULL_RATE_ENTRIES)
        return self.inner_lr * shrink.to(self.inner_lr.dtype)

    def forward(self, function: Callable[[Recommender], T]) -> T:
        """Return a function of this module; `functional_call` can then replace parameters."""
        return function(self)


def mask_items(scores: Tensor, item: Tensor, weight: Tensor) -> Tensor:
    """Return scores [rows, items] where the items of a sketch are minus infinity.

    An item may occur twice. NaN stays NaN.

    Args:
        scores: Scores of all items, [rows, items].
        item: Items to mask, [rows, n].
        weight: Only items with a positive weight are masked, [rows, n].
    """
    lowered = torch.where(weight > 0, -torch.inf, 0.0).to(scores.dtype)
    return scores.scatter_add(1, item, lowered)


def _per_entry_gradients(
    function: Callable[..., Tensor], user: Tensor, items: Tensor, ratings: Tensor
) -> Tensor:
    """Return gradients [rows, n, dim] in the user vector of a function [rows, n] of entries."""

    def one_row(vector: Tensor, item: Tensor, rating: Tensor) -> Tensor:
        return function(vector[None], item[None], rating[None])[0]

    jacobian: Tensor = torch.func.vmap(torch.func.jacrev(one_row))(user, items, ratings)
    return jacobian
