"""Dot product for clicks whose inner loop does not sum over all items.

The inner loop descends on a quadratic approximation of the softmax loss (`linearised_descent`):
the moments of all item vectors are computed once for a batch of users, not in every step. The
probabilities of the moments are softmax(bias): what is predicted without a user. The loss of
predictions (Eq. 1) is a softmax over all items, or over sampled ones.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from dips.kernels import dispatch
from dips.numerics.descent import Rounding, identity
from dips.numerics.influence import solve
from dips.numerics.linearised_descent import (
    LinearisedProblem,
    Moments,
    curvature_bound,
    item_sums,
    iterates,
    moments,
    quantized_moments,
    stable_rate,
)
from dips.numerics.log_sum_exp import LogSumExp, StoredLogSumExp, can_store
from dips.recommender.base import CG_STEPS, Evidence
from dips.recommender.losses import FullSoftmax, Loss, SampledLoss, SampledSoftmax
from dips.recommender.repeat_scores import (
    RepeatScores,
    check_item_numbers,
    repeat_scores,
    repeat_slope,
    weighted_repeats,
)
from dips.recommender.weighted_entries import WeightedEntries

MIN_REMAINING = 1e-6
"""Lower bound of the share of the denominator that remains if repeat scores are negative."""
REPEAT_SCORES = (2.0, 1.5, 2.0, -2.0)
"""Initial parameters of `repeat_scores`: the past counts for long."""


@final
class LinearisedDotProduct(WeightedEntries):
    """A recommender of clicks with scores item bias + item vector . user vector.

    The inner loss of an entry with input vector x is c (mean - x) . u + u' covariance u / 2, with
    the moments of all item vectors and a learned scale c.

    With `repeat_feature`, items of the sketch have a score of their own (`repeat_scores`), by how
    often and how recently they occurred. A user vector then holds `dim` numbers, the items of the
    sketch as floats, and their scores.

    Args:
        loss: The training loss, for items.
        dim: Length of an item vector.
        generator: Source of the initial parameters.
        repeat_feature: Add the score of items that repeat. An entry's weight grows with a learned
            power of its repeat count.
        recency_decay: Let an entry's weight decay as a learned power of its age.
        tie_embeddings: False: sketch entries have a separate input embedding.
        settings: Settings of `NCF`.
    """

    no_weight_decay: ClassVar[tuple[str, ...]] = (
        *WeightedEntries.no_weight_decay, "log_entry_scale",
    )  # fmt: skip
    stored_sums: Tensor
    """[dim + 1, dim + 1] `item_sums` of all items; [0, 0]: computed from the item vectors.

    Training stores them where a step changes few of very many items. So does a keeper.
    """

    def __init__(
        self,
        *,
        loss: Loss,
        dim: int = 32,
        generator: torch.Generator | None = None,
        repeat_feature: bool = False,
        recency_decay: bool = False,
        tie_embeddings: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(
            loss=loss,
            dim=dim,
            user_dim=dim,
            generator=generator,
            repeat_feature=repeat_feature,
            recency_decay=recency_decay,
            tie_embeddings=tie_embeddings,
            **settings,
        )
        self.log_entry_scale = nn.Parameter(torch.tensor(0.0))
        self.register_buffer("stored_sums", torch.zeros(0, 0), persistent=False)
        if repeat_feature:
            check_item_numbers(self.items)
            self.repeat_params = nn.Parameter(torch.tensor(REPEAT_SCORES))

    @property
    def entry_scale(self) -> Tensor:
        """[] scale c of the linear terms of the inner loss."""
        return self.log_entry_scale.exp()

    @property
    def moments(self) -> Moments:
        """Mean and covariance of all item vectors under softmax(bias).

        From stored sums, gradients flow to the items in the tables only.
        """
        if not self.stored_sums.numel():
            return moments(self.item_sums())
        if not torch.is_grad_enabled():
            return moments(self.stored_sums)
        own = self.item_sums()
        return moments(self.stored_sums + (own - own.detach()))

    def item_sums(self) -> Tensor:
        """Return the weighted sums over the items in the tables, [dim + 1, dim + 1]."""
        return item_sums(self.table, self.biases[:, 0])

    def with_stored_sums(self) -> LinearisedDotProduct:
        """Return a copy that shares all parameters and has the sums over all items computed once.

        For serving: the parameters must not change afterwards.
        """
        shared = copy.copy(self)
        with torch.no_grad():
            shared._buffers = self._buffers | {"stored_sums": self.item_sums()}
        return shared

    def step_size(self, evidence: Evidence) -> Tensor:
        """Return the step size, [rows], so small that the descent cannot diverge.

        It depends on the weights of the entries only where it has to be reduced, and it counts as a
        constant: no gradient flows through it.
        """
        weight = self.effective_weights(evidence).sum(1)
        return self._stable_rate(evidence, weight, self.moments)

    def _stable_rate(self, evidence: Evidence, weight: Tensor, moments: Moments) -> Tensor:
        bound = curvature_bound(moments.covariance.detach())
        rate = super().step_size(evidence)
        return stable_rate(rate, weight.detach(), bound, self.prior_penalty)

    def inner_problem(self, evidence: Evidence, rounding: Rounding = identity) -> LinearisedProblem:
        """Return the inputs of the inner loop; with a rounding, moments are on the grid."""
        weight = self.effective_weights(evidence, rounding)
        features = (self.input_vectors(evidence.item) * weight[:, :, None]).sum(1)
        if rounding is identity:
            moments = self.moments
        else:
            moments = quantized_moments(self.table, self.biases[:, 0])
        scale, total = rounding(self.entry_scale), weight.sum(1)
        rate = self._stable_rate(evidence, total, moments)
        start = self.initial_user(len(weight))
        return LinearisedProblem(moments, scale, features, total, start, rate, self.prior_penalty)

    def read(self, evidence: Evidence, rounding: Rounding = identity) -> Tensor:
        """Return user vectors after the inner loop (Eq. 7), [rows, dim]; with repeat scores."""
        problem = self.inner_problem(evidence, rounding)
        user = iterates(problem, self.inner_steps, rounding)[-1]
        return self.with_repeat_scores(user, evidence, rounding)

    def with_repeat_scores(
        self, user: Tensor, evidence: Evidence, rounding: Rounding = identity
    ) -> Tensor:
        """Return user vectors with the repeat scores of their entries, if there are any."""
        if not self.has_repeat_feature:
            return user
        weight = weighted_repeats(evidence)
        repeats = repeat_scores(self.repeat_params, evidence.item, weight, evidence.age)
        return torch.cat([user, repeats.item.to(user.dtype), rounding(repeats.score)], 1)

    def repeat_slope(self, user: Tensor, entries: Evidence) -> Tensor:
        """Return the slope of an item's repeat score in the weights of these entries, [rows, n].

        Args:
            user: User vectors with the repeat scores of their sketch.
            entries: Interactions, in the sketch or not. Repeats of an entry count from its older
                duplicates on, among the entries with a positive weight.
        """
        return repeat_slope(self.repeat_params, self._repeats(user), entries)

    def _repeats(self, user: Tensor) -> RepeatScores:
        item, score = user[:, len(self.user_prior) :].chunk(2, 1)
        return RepeatScores(item.long(), score)

    def _shared(self, user: Tensor) -> Tensor:
        """[rows, dim] the elements of user vectors that all items share."""
        return user[:, : len(self.user_prior)]

    def inner_loss(self, user: Tensor, items: Tensor, ratings: Tensor) -> Tensor:
        """Return the quadratic loss of each entry, [rows, n]."""
        (mean, covariance), user = self.moments, self._shared(user)
        linear = self.entry_scale * ((mean - self.input_vectors(items)) @ user[:, :, None])
        return linear[:, :, 0] + ((user @ covariance) * user).sum(1, keepdim=True) / 2

    def inner_gradient(self, user: Tensor, evidence: Evidence) -> Tensor:
        """Return the gradient of the weighted inner losses, [rows, dim]."""
        mean, covariance = self.moments
        weight = self.effective_weights(evidence)
        features = (self.input_vectors(evidence.item) * weight[:, :, None]).sum(1)
        total = weight.sum(1, keepdim=True)
        linear = self.entry_scale * (total * mean - features)
        return linear + total * (self._shared(user) @ covariance)

    def influences(
        self, user: Tensor, items: Tensor, ratings: Tensor, weight: Tensor, damping: float
    ) -> Tensor:
        """Return influences (Eq. 11) in closed form; the Hessian is the same for all users."""
        mean, covariance = self.moments
        total = weight.sum(1, keepdim=True)

        def losses(point: Tensor) -> Tensor:
            return (self.losses(point, items, ratings) * weight).sum()

        slope = self._shared(torch.func.grad(losses)(user))
        solved = solve(lambda vector: total * (vector @ covariance), slope, damping, CG_STEPS)
        common = self.entry_scale * mean + self._shared(user) @ covariance
        products = self.entry_scale * self.input_products(items, solved)
        return products - (common * solved).sum(1, keepdim=True)

    def input_products(self, items: Tensor, vector: Tensor) -> Tensor:
        """Return the products of input vectors of sketch entries with vectors, [rows, n]."""
        return (self.input_vectors(items) @ vector[:, :, None])[:, :, 0]

    def item_products(self, items: Tensor, vector: Tensor) -> Tensor:
        """Return the products of item vectors with vectors [rows, dim], [rows, n]."""
        return (self.item_vectors(items) @ vector[:, :, None])[:, :, 0]

    def predict(self, user: Tensor, items: Tensor) -> Tensor:
        """Return scores of items [rows, n]."""
        scores = self.intercept(items) + self.item_products(items, self._shared(user))
        return scores + self._repeats(user).of(items) if self.has_repeat_feature else scores

    def predict_all(self, user: Tensor) -> Tensor:
        """Return scores of every item, [rows, items], by one matrix product."""
        scores = torch.addmm(self.biases[:, 0] + self.offset, self._shared(user), self.table.T)
        if not self.has_repeat_feature:
            return scores
        repeats = self._repeats(user)
        return scores.scatter_add(1, repeats.item, repeats.score)

    def predict_some(self, user: Tensor, items: Tensor) -> Tensor:
        """Return scores [rows, n] of items [n] for all users, by one matrix product."""
        scores = torch.addmm(self.intercept(items), self._shared(user), self.item_vectors(items).T)
        return scores + self._repeats(user).of_some(items) if self.has_repeat_feature else scores

    @property
    def elements_per_row(self) -> int:
        """Number of elements per row in the widest tensors: no logits of all items are stored.

        With a thousand rows at once, the moments of all items cost little beside the predictions.
        """
        negatives = self.loss.negatives if isinstance(self.loss, SampledLoss) else 0
        return 8 * len(self.user_prior) + 2 * negatives

    def losses(self, user: Tensor, items: Tensor, ratings: Tensor) -> Tensor:
        """Return the loss of each interaction, [rows, n]; without storing all logits.

        Repeat scores enter a softmax exactly, whether it is over all items or over sampled ones:
        sampled items would seldom include those of the sketch.
        """
        shared = self._shared(user)
        if isinstance(self.loss, FullSoftmax):
            log_norm = self._log_norm(shared)[:, None]
        elif isinstance(self.loss, SampledSoftmax) and self.has_repeat_feature:
            log_norm = super().losses(shared, items, ratings) + self.predict(shared, items)
        else:
            return super().losses(user, items, ratings)
        if self.has_repeat_feature:
            log_norm = self._with_repeats(log_norm, user)
        return log_norm - self.predict(user, items)

    def log_norm_without(self, user: Tensor, filtered: Tensor) -> Tensor:
        """Return the log of the softmax denominator without filtered items, [rows], in chunks.

        Args:
            user: User vectors, [rows, dim]; without repeat scores.
            filtered: Items that each row leaves out, [rows, n]; -1 pads.
        """
        return self._log_norm(user, filtered)

    def _log_norm(self, shared: Tensor, *filtered: Tensor) -> Tensor:
        """[rows] log of the sum over all items of exp(score), without repeat scores.

        `filtered` [rows, n], if it is given, has the items that a row leaves out; -1 pads.
        """
        table, bias = self.table, self.biases[:, 0] + self.offset
        function: type[torch.autograd.Function] = LogSumExp
        if dispatch.has_cuda_softmax(self.vectors) and not filtered:
            function = dispatch.CudaLogSumExp
        elif can_store(table, shared):
            function = StoredLogSumExp
        norm: Tensor = function.apply(table, bias, shared, *filtered)[0]  # type: ignore[no-untyped-call]
        return norm

    def _with_repeats(self, log_norm: Tensor, user: Tensor) -> Tensor:
        """[rows, n] log sums of exp(score), with the repeat scores of the items in the sketch."""
        repeats = self._repeats(user)
        scores = self.predict(self._shared(user), repeats.item)
        terms = (scores[:, None, :] - log_norm[:, :, None]).exp()
        change = (terms * repeats.score.expm1()[:, None, :]).sum(2)
        return log_norm + change.clamp_min(MIN_REMAINING - 1).log1p()
