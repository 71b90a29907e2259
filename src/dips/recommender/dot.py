"""Neural collaborative filtering by a dot product: outputs are linear in the user vector (GMF)."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from dips.kernels import dispatch
from dips.numerics import fixed_point
from dips.numerics.descent import Rounding, descend_linear, identity
from dips.numerics.influence import covariance, linear_influences, solve
from dips.numerics.softmax_descent import (
    AllItems,
    InnerProblem,
    SoftmaxDescent,
    descend_softmax,
    softmax,
)
from dips.recommender.base import CG_STEPS, Evidence
from dips.recommender.losses import FullSoftmax, Loss, SampledLoss
from dips.recommender.ncf import embed
from dips.recommender.weighted_entries import WeightedEntries

USER_BIAS = 0.3
"""Initial scale of the user-bias feature."""
REPEAT_SCALE = 1.0
"""Initial scale of the item-id feature."""
PAIRS = 16
"""Rough number of entries of a sketch that are compared with the negatives at once."""


@final
class DotProduct(WeightedEntries):
    """A recommender with outputs offset + item bias + item vector . user vector (GMF).

    With a pointwise loss the user vector has one more element, the user bias. Its feature has a
    learned scale. With several channels each has its own bias and its own scaling of the features.

    Args:
        loss: The training loss.
        dim: Length of an item vector.
        generator: Source of the initial parameters.
        repeat_feature: Add an item-id feature with a learned scale (softmax only). The user vector
            then has one more element per item, which starts at 0. An entry's weight grows with a
            learned power of its repeat count.
        recency_decay: Let an entry's weight decay as a learned power of its age (softmax only).
        tie_embeddings: False adds a learned offset to the vectors of sketch entries, so entries
            have a separate input embedding (softmax only). The offset starts at 0.
        settings: Settings of `NCF`.
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
            user_dim=dim if loss.listwise else dim + 1,
            generator=generator,
            repeat_feature=repeat_feature,
            recency_decay=recency_decay,
            tie_embeddings=tie_embeddings,
            **settings,
        )
        if repeat_feature:
            self.repeat_scale = nn.Parameter(torch.tensor(REPEAT_SCALE))
        if not loss.listwise:
            self.user_bias_scale = nn.Parameter(torch.tensor(USER_BIAS))
        if loss.channels > 1:
            scale = torch.linspace(-1, 1, loss.channels)[:, None].expand(-1, dim + 1)
            self.class_scale = nn.Parameter(scale.clone())

    def features(self, items: Tensor) -> Tensor:
        """Return what multiplies the user vector: [rows, n, dim], or [rows, n, channels, dim]."""
        rows = self.item_vectors(items)
        if self.loss.listwise:
            return rows
        rows = torch.cat([rows, self.user_bias_scale.expand(*rows.shape[:-1], 1)], -1)
        return rows if self.loss.channels == 1 else rows[..., None, :] * self.class_scale

    def initial_user(self, rows: int) -> Tensor:
        """Return the prior; item-id elements start at 0."""
        prior = super().initial_user(rows)
        return functional.pad(prior, (0, self.items)) if self.has_repeat_feature else prior

    @property
    def all_items(self) -> AllItems:
        """Parameters of the logits of all items."""
        bias = self.biases[:, 0] + self.offset
        return AllItems(self.table, bias, self.repeat_scale if self.has_repeat_feature else None)

    def item_products(self, items: Tensor, vector: Tensor) -> Tensor:
        """Return the products of item features with vectors, [rows, n].

        Args:
            items: Items of each row, [rows, n].
            vector: User vectors, or changes of them, [rows, user_dim].
        """
        scores = self._products(self.item_vectors(items), vector)
        if not self.has_repeat_feature:
            return scores
        return scores + self.repeat_scale * self._split(vector)[1].gather(1, items)

    def sum_features(self, vectors: Tensor, items: Tensor, weight: Tensor) -> Tensor:
        """Return the weighted sum of vectors and item-id features, [rows, user_dim].

        Args:
            vectors: Item or input vectors, [rows, n, dim].
            items: Their items, [rows, n].
            weight: Their weights, [rows, n].
        """
        shared = (vectors * weight[:, :, None]).sum(1)
        if not self.has_repeat_feature:
            return shared
        counts = torch.zeros_like(weight[:, :1]).expand(-1, self.items)
        return torch.cat([shared, self.repeat_scale * counts.scatter_add(1, items, weight)], 1)

    def inner_loss(self, user: Tensor, items: Tensor, ratings: Tensor) -> Tensor:
        """Return the loss, minus the product with the offset of a separate input embedding."""
        losses = self.losses(user, items, ratings)
        if self.tie_embeddings:
            return losses
        return losses - self._products(self.input_offsets(items), user)

    def input_products(self, items: Tensor, vector: Tensor) -> Tensor:
        """Return the products of input features of sketch entries with vectors, [rows, n]."""
        scores = self.item_products(items, vector)
        if self.tie_embeddings:
            return scores
        return scores + self._products(self.input_offsets(items), vector)

    def _products(self, rows: Tensor, vector: Tensor) -> Tensor:
        """[rows, n] products of vectors [rows, n, dim] with the shared elements of others."""
        return (rows @ self._split(vector)[0][:, :, None])[:, :, 0]

    def _full_features(self, items: Tensor) -> Tensor:
        """[rows, n, user_dim] item vectors, and one-hot item-id features if there are any."""
        rows = self.item_vectors(items)
        if not self.has_repeat_feature:
            return rows
        one_hot = items[..., None] == torch.arange(self.items, device=items.device)
        return torch.cat([rows, self.repeat_scale * one_hot], -1)

    def _split(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Elements of a vector that all items share, and the item-id elements."""
        shared = len(self.user_prior)
        return vector[:, :shared], vector[:, shared:]

    def predict(self, user: Tensor, items: Tensor) -> Tensor:
        """Return outputs that are linear in the user vector."""
        if self.loss.listwise:
            return self.intercept(items) + self.item_products(items, user)
        features = self.features(items)
        flat = features.flatten(1, -2)  # [rows, n * channels, dim]
        scores = (flat @ user[:, :, None])[:, :, 0]
        return self.intercept(items) + scores.reshape(features.shape[:-1])

    @property
    def fused(self) -> bool:
        """Whether a GPU kernel reads sketches without storing the logits of all items."""
        return isinstance(self.loss, FullSoftmax) and dispatch.has_cuda_softmax(self.vectors)

    @property
    def elements_per_row(self) -> int:
        """Number of elements per row in the widest tensor: the logits of all items, mostly."""
        if self.fused and not (self.has_repeat_feature or self.masks_seen):
            return 2 * len(self.user_prior) * (self.inner_steps + 1)
        pairs = PAIRS * self.loss.negatives if isinstance(self.loss, SampledLoss) else 0
        return max(self.items, pairs) if self.loss.listwise else 64

    def predict_all(self, user: Tensor) -> Tensor:
        """Return outputs for every item, [rows, items], by one matrix product."""
        if self.loss.listwise:
            return self.all_items.logits(user)
        return super().predict_all(user)

    def predict_some(self, user: Tensor, items: Tensor) -> Tensor:
        """Return outputs [rows, n] for items [n] of all users, by one matrix product."""
        if self.loss.listwise:
            shared, repeated = self._split(user)
            scores = shared @ self.item_vectors(items).T + self.intercept(items)
            if not self.has_repeat_feature:
                return scores
            return scores + self.repeat_scale * repeated[:, items]
        return super().predict_some(user, items)

    def read(self, evidence: Evidence, rounding: Rounding = identity) -> Tensor:
        """Return user vectors after the inner loop with closed-form gradients (Eq. 7)."""
        if isinstance(self.loss, SampledLoss):
            return super().read(evidence, rounding)
        if self.loss.listwise:
            return self._read_listwise(evidence, rounding)
        features = self.features(evidence.item)
        shape = features.shape[1:-1]  # (n,) or (n, channels)
        weight = evidence.weight if len(shape) == 1 else evidence.weight[:, :, None]
        rating = self.standardise(evidence.rating)

        def derivative(scores: Tensor) -> Tensor:
            output = scores.reshape(len(scores), *shape)
            return (self.loss.derivative(output, rating) * weight).flatten(1)

        return descend_linear(
            features.flatten(1, -2),
            self.intercept(evidence.item).flatten(1),
            derivative,
            self.initial_user(len(evidence.item)),
            self.step_size(evidence),
            self.inner_steps,
            self.prior_penalty,
            rounding,
        )

    def inner_problem(self, evidence: Evidence, rounding: Rounding = identity) -> InnerProblem:
        """Return the inputs of the inner loop with a softmax over all items."""
        weight = self.effective_weights(evidence, rounding)
        features = self.sum_features(self.input_vectors(evidence.item), evidence.item, weight)
        start, rate = self.initial_user(len(weight)), self.step_size(evidence)
        return InnerProblem(features, weight.sum(1), start, rate, self.prior_penalty)

    def _read_listwise(self, evidence: Evidence, rounding: Rounding) -> Tensor:
        """Use a hand-written backward pass where a gradient may be needed."""
        items, problem = self.all_items, self.inner_problem(evidence, rounding)
        if rounding is identity and (self.fused or torch.is_grad_enabled()):
            function = dispatch.CudaSoftmaxDescent if self.fused else SoftmaxDescent
            user: Tensor = function.apply(*items, *problem, self.inner_steps)[0]  # type: ignore[no-untyped-call]
            return user
        probabilities = softmax if rounding is identity else fixed_point.softmax
        return descend_softmax(items, problem, self.inner_steps, probabilities, rounding)

    def losses(self, user: Tensor, items: Tensor, ratings: Tensor) -> Tensor:
        """Return the loss of each interaction, [rows, n]; on a GPU without all logits."""
        if not self.fused or self.has_repeat_feature:
            return super().losses(user, items, ratings)
        table, bias, _ = self.all_items
        norm: Tensor = dispatch.CudaLogSumExp.apply(table, bias, user)[0]  # type: ignore[no-untyped-call]
        scores = (embed(table, items) @ user[:, :, None])[:, :, 0]
        return norm[:, None] - scores - embed(bias[:, None], items)[:, :, 0]

    def _expected(self, user: Tensor) -> Tensor:
        """[rows, user_dim] mean features of all items by their predicted probabilities."""
        if self.fused and not self.has_repeat_feature:
            return dispatch.cuda_moments(self.all_items, user)[1]
        return self.all_items.mean(self.predict_all(user).softmax(-1))

    def inner_gradient(self, user: Tensor, evidence: Evidence) -> Tensor:
        """Return the gradient of the weighted inner losses in closed form, [rows, user_dim]."""
        if isinstance(self.loss, SampledLoss):
            return super().inner_gradient(user, evidence)
        if self.loss.listwise:
            weight = self.effective_weights(evidence)
            features = self.sum_features(self.input_vectors(evidence.item), evidence.item, weight)
            return weight.sum(1, keepdim=True) * self._expected(user) - features
        features = self.features(evidence.item)
        flat = features.flatten(1, -2)  # [rows, n * channels, dim]
        scores = (flat @ user[:, :, None])[:, :, 0].reshape(features.shape[:-1])
        rating = self.standardise(evidence.rating)
        slope = self.loss.derivative(self.intercept(evidence.item) + scores, rating)
        wide = evidence.weight if self.loss.channels == 1 else evidence.weight[:, :, None]
        slope = (slope * wide).flatten(1)
        return (flat.transpose(1, 2) @ slope[:, :, None])[:, :, 0]

    def loss_gradients(self, user: Tensor, items: Tensor, ratings: Tensor) -> Tensor:
        """Return the gradient of each loss in closed form, [rows, n, user_dim]."""
        if isinstance(self.loss, SampledLoss):
            return super().loss_gradients(user, items, ratings)
        if self.loss.listwise:
            return self._expected(user)[:, None, :] - self._full_features(items)
        features = self.features(items)
        slope = self.loss.derivative(self.predict(user, items), self.standardise(ratings))
        slope = slope[..., None] * features
        return slope if self.loss.channels == 1 else slope.sum(2)

    def influences(
        self, user: Tensor, items: Tensor, ratings: Tensor, weight: Tensor, damping: float
    ) -> Tensor:
        """Return influences (Eq. 11) from the Gram matrix, or the covariance for the softmax."""
        if isinstance(self.loss, SampledLoss):
            return super().influences(user, items, ratings, weight, damping)
        if self.loss.listwise:
            every, total = self.all_items, weight.sum(1, keepdim=True)
            probability = every.logits(user).softmax(-1)
            mean = every.mean(probability)
            hessian = None if self.has_repeat_feature else covariance(probability, self.table)

            def product(vector: Tensor) -> Tensor:
                if hessian is not None:
                    return total * (hessian @ vector[:, :, None])[:, :, 0]
                change = every.along(vector)
                centre = (probability * change).sum(1, keepdim=True)
                return total * every.mean(probability * (change - centre))

            slope = total * mean - self.sum_features(self.item_vectors(items), items, weight)
            solved = solve(product, slope, damping, CG_STEPS)
            return self.input_products(items, solved) - (mean * solved).sum(1, keepdim=True)
        if self.loss.channels > 1:
            return super().influences(user, items, ratings, weight, damping)
        output, target = self.predict(user, items), self.standardise(ratings)
        second = torch.func.grad(lambda o: self.loss.derivative(o, target).sum())(output)
        slope = self.loss.derivative(output, target)
        return linear_influences(self.features(items), slope, second, weight, damping)
