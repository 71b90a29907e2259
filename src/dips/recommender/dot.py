"""Neural collaborative filtering by a product: scores are linear in the user's vector (GMF)."""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from dips.kernels import softmax_cuda
from dips.numerics import fixed_point
from dips.numerics.descent import Rounding, descend_linear, keep
from dips.numerics.influence import covariance, linear_influences, solve
from dips.numerics.softmax_descent import AllItems, Descent, Setting, descend_softmax, softmax
from dips.recommender.base import CURVE_STEPS, Evidence
from dips.recommender.losses import Contrast, FullSoftmax, Loss
from dips.recommender.ncf import BY_ITEM, NCF, rows_of

SPREAD = 0.05
"""Standard deviation of the entries of a vector at the start."""
USER_BIAS = 0.3
"""Loading of the user's bias at the start."""
OWN = 1.0
"""Loading of an item's own entry at the start."""
FADING = {True: (2.0, -1.0), False: (0.0, 2.0)}
"""Logarithm of the age at which weights begin to fade, and how fast (before softplus), at first.

Where items come back the past counts for long; where they do not, the newest counts most.
"""
TALLY = 0.5
"""At first: to this power an interaction's weight grows with how often its item was met."""
PAIRS = 16
"""Items of a sketch that are held against the negatives at once, about."""


@final
class DotProduct(NCF):
    """Scores linear in the user's vector (GMF): offset + bias of the item + item . user.

    For pointwise losses the user's vector has one more entry, the user's own bias; how strongly a
    rating tells of it is learned, and starts small enough that a few do not settle it. With several
    channels (stars) each has its own bias and its own scaling of the item's vector.

    Where items come back (`repeat_feature`, softmax only), every item also has an entry of its own in
    the user's vector: what was kept tells of itself, and not only of what is like it. How strongly,
    is learned. These entries start at 0 and are never stored for anyone. And what was met often
    counts more, by a learned power of how often.

    With `recency_decay` (softmax only) an interaction's weight falls with its age as a power of it, from a
    learned age on: what was kept long ago is read as the past, not as the present.

    With `separate_input` (softmax only) a kept item tells more than that it was chosen: reading pulls the
    user's vector towards the item's own and what is learned of what comes after it, 0 at first.
    """

    by_item: ClassVar[tuple[str, ...]] = BY_ITEM

    def __init__(
        self,
        *,
        loss: Loss,
        dim: int = 32,
        generator: torch.Generator | None = None,
        repeat_feature: bool = False,
        recency_decay: bool = False,
        separate_input: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(
            loss=loss,
            dim=dim,
            user_dim=dim if loss.listwise else dim + 1,
            spread=SPREAD,
            generator=generator or torch.Generator().manual_seed(0),
            **settings,
        )
        self.has_own, self.counts_repeats, self.has_recency_decay, self.has_separate_input = (
            repeat_feature,
            repeat_feature,
            recency_decay,
            separate_input,
        )
        if separate_input:
            self.separate_input = nn.Parameter(torch.zeros(self.items, dim))
        if recency_decay:
            self.recency_decay = nn.Parameter(torch.tensor(FADING[repeat_feature]))
        if repeat_feature:
            self.own = nn.Parameter(torch.tensor(OWN))
            self.tally = nn.Parameter(torch.tensor(TALLY))
        if not loss.listwise:
            self.loading = nn.Parameter(torch.tensor(USER_BIAS))
        if loss.channels > 1:
            spread = torch.linspace(-1, 1, loss.channels)[:, None].expand(-1, dim + 1)
            self.stars = nn.Parameter(spread.clone())

    def features(self, items: Tensor) -> Tensor:
        """What multiplies the user's vector: [rows, n, dim], or [rows, n, channels, dim]."""
        rows = self.rows(items)
        if self.loss.listwise:
            return rows
        rows = torch.cat([rows, self.loading.expand(*rows.shape[:-1], 1)], -1)
        return rows if self.loss.channels == 1 else rows[..., None, :] * self.stars

    def strength(self, age: Tensor, repeats: Tensor) -> Tensor:
        """repeats ^ tally / (1 + age / scale) ^ power."""
        grown = torch.zeros_like(age)
        if self.counts_repeats:
            grown = self.tally * repeats.clamp_min(1).log()
        if self.has_recency_decay:
            scale, power = self.recency_decay.unbind()
            grown = grown - functional.softplus(power) * (age * (-scale).exp()).log1p()
        return grown.exp()

    def rate(self, evidence: Evidence) -> Tensor:
        """For the softmax as it is given: old entries fade, and each item has an entry of its own.

        So the curvature does not grow with the number of entries as it does elsewhere.
        """
        if not (self.has_recency_decay or self.has_own):
            return super().rate(evidence)
        return self.inner_lr.expand(len(evidence.slots))

    def start(self, rows: int) -> Tensor:
        """The prior; an item's own entry starts at 0."""
        prior = super().start(rows)
        return functional.pad(prior, (0, self.items)) if self.has_own else prior

    @property
    def all_items(self) -> AllItems:
        """What makes the logits of all items of a user's vector."""
        bias = self.biases[:, 0] + self.offset
        return AllItems(self.table, bias, self.own if self.has_own else None)

    def along(self, items: Tensor, vector: Tensor) -> Tensor:
        """[rows, n] what a vector of users, or a change of it, adds to the scores of items."""
        scores = self._along(self.rows(items), vector)
        if not self.has_own:
            return scores
        return scores + self.own * self._entries(vector)[1].gather(1, items)

    def total(self, rows: Tensor, items: Tensor, weight: Tensor) -> Tensor:
        """[rows, dim] weighted sum of vectors [rows, n, dim] and own entries of items [rows, n]."""
        shared = (rows * weight[:, :, None]).sum(1)
        if not self.has_own:
            return shared
        counts = torch.zeros_like(weight[:, :1]).expand(-1, self.items)
        return torch.cat([shared, self.own * counts.scatter_add(1, items, weight)], 1)

    def told(self, items: Tensor) -> Tensor:
        """[rows, n, dim] what entries of a sketch pull a user's vector to."""
        rows = self.rows(items)
        return rows + self._more(items) if self.has_separate_input else rows

    def heard(self, user: Tensor, items: Tensor, ratings: Tensor) -> Tensor:
        """The loss, less what an entry tells besides."""
        losses = self.losses(user, items, ratings)
        return losses - self._along(self._more(items), user) if self.has_separate_input else losses

    def worth(self, items: Tensor, vector: Tensor) -> Tensor:
        """[rows, n] what entries of a sketch, as they are read, pull along a vector."""
        scores = self.along(items, vector)
        return (
            scores + self._along(self._more(items), vector) if self.has_separate_input else scores
        )

    def _more(self, items: Tensor) -> Tensor:
        """[rows, n, dim] what entries tell beyond that they were chosen."""
        return rows_of(self.separate_input, self._item(items))

    def _along(self, rows: Tensor, vector: Tensor) -> Tensor:
        """[rows, n] products of vectors [rows, n, dim] with the entries that all items share."""
        return (rows @ self._entries(vector)[0][:, :, None])[:, :, 0]

    def _whole(self, items: Tensor) -> Tensor:
        """[rows, n, dim] what multiplies a user's vector, written out."""
        rows = self.rows(items)
        if not self.has_own:
            return rows
        return torch.cat([rows, self.own * self._named(items)], -1)

    def _named(self, items: Tensor) -> Tensor:
        """[rows, n, items] 1 at the item."""
        return items[..., None] == torch.arange(self.items, device=items.device)

    def _entries(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Entries that all items share, and those that are an item's own."""
        shared = len(self.user_prior)
        return vector[:, :shared], vector[:, shared:]

    def predict(self, user: Tensor, items: Tensor) -> Tensor:
        """Linear in the user's vector."""
        if self.loss.listwise:
            return self.intercept(items) + self.along(items, user)
        features = self.features(items)
        flat = features.flatten(1, -2)  # [rows, n * channels, dim]
        scores = (flat @ user[:, :, None])[:, :, 0]
        return self.intercept(items) + scores.reshape(features.shape[:-1])

    @property
    def fused(self) -> bool:
        """Whether programs read sketches without storing logits of all items."""
        return isinstance(self.loss, FullSoftmax) and softmax_cuda.fits(self.vectors)

    @property
    def breadth(self) -> int:
        """Logits of all items; no pair of user and item is ever wider than a number."""
        if self.fused and not self.has_own:
            return 2 * len(self.user_prior) * (self.inner_steps + 1)
        pairs = PAIRS * self.loss.negatives if isinstance(self.loss, Contrast) else 0
        return max(self.items, pairs) if self.loss.listwise else 64

    def predict_all(self, user: Tensor) -> Tensor:
        """One product of matrices."""
        if self.loss.listwise:
            return self.all_items.logits(user)
        return super().predict_all(user)

    def predict_some(self, user: Tensor, items: Tensor) -> Tensor:
        """One product of matrices."""
        if self.loss.listwise:
            shared, own = self._entries(user)
            scores = shared @ self.rows(items).T + self.intercept(items)
            return scores + self.own * own[:, items] if self.has_own else scores
        return super().predict_some(user, items)

    def read(self, evidence: Evidence, rounding: Rounding = keep) -> Tensor:
        """The inner loop in closed form; a contrast's by automatic differentiation."""
        if isinstance(self.loss, Contrast):
            return super().read(evidence, rounding)
        if self.loss.listwise:
            return self._read_listwise(evidence, rounding)
        features = self.features(evidence.item)
        shape = features.shape[1:-1]  # (n,) or (n, channels)
        weight = evidence.weight if len(shape) == 1 else evidence.weight[:, :, None]

        def slope(scores: Tensor) -> Tensor:
            output = scores.reshape(len(scores), *shape)
            return (self.loss.slope(output, evidence.rating) * weight).flatten(1)

        return descend_linear(
            features.flatten(1, -2),
            self.intercept(evidence.item).flatten(1),
            slope,
            self.start(len(evidence.item)),
            self.rate(evidence),
            self.inner_steps,
            self.prior_penalty,
            rounding,
        )

    def descent(self, evidence: Evidence, rounding: Rounding = keep) -> Setting:
        """What the softmax descends on."""
        weight = self.counted(evidence, rounding)
        pulled = self.total(self.told(evidence.item), evidence.item, weight)
        start, rate = self.start(len(weight)), self.rate(evidence)
        return Setting(pulled, weight.sum(1), start, rate, self.prior_penalty)

    def _read_listwise(self, evidence: Evidence, rounding: Rounding) -> Tensor:
        """With a way back that is written out, unless nobody will go it."""
        items, setting = self.all_items, self.descent(evidence, rounding)
        if rounding is keep and (self.fused or torch.is_grad_enabled()):
            way = softmax_cuda.Descent if self.fused else Descent
            user: Tensor = way.apply(*items, *setting, self.inner_steps)[0]  # type: ignore[no-untyped-call]
            return user
        chances = softmax if rounding is keep else fixed_point.softmax
        return descend_softmax(items, setting, self.inner_steps, chances, rounding)

    def losses(self, user: Tensor, items: Tensor, ratings: Tensor) -> Tensor:
        """For the softmax, where programs sum over items: their sum less the own score."""
        if not self.fused or self.has_own:
            return super().losses(user, items, ratings)
        table, bias, _ = self.all_items
        norm: Tensor = softmax_cuda.LogSum.apply(table, bias, user)[0]  # type: ignore[no-untyped-call]
        scores = (rows_of(table, items) @ user[:, :, None])[:, :, 0]
        return norm[:, None] - scores - rows_of(bias[:, None], items)[:, :, 0]

    def _expected(self, user: Tensor) -> Tensor:
        """[rows, dim] what all items are to a user on average, by their chances."""
        if self.fused and not self.has_own:
            return softmax_cuda.moments(self.all_items, user)[1]
        return self.all_items.mean(self.predict_all(user).softmax(-1))

    def slope(self, user: Tensor, evidence: Evidence) -> Tensor:
        """Slopes of the scores times features; for the softmax, expected minus own rows."""
        if isinstance(self.loss, Contrast):
            return super().slope(user, evidence)
        if self.loss.listwise:
            weight = self.counted(evidence)
            pulled = self.total(self.told(evidence.item), evidence.item, weight)
            return weight.sum(1, keepdim=True) * self._expected(user) - pulled
        features = self.features(evidence.item)
        flat = features.flatten(1, -2)  # [rows, n * channels, dim]
        scores = (flat @ user[:, :, None])[:, :, 0].reshape(features.shape[:-1])
        fall = self.loss.slope(self.intercept(evidence.item) + scores, evidence.rating)
        wide = evidence.weight if self.loss.channels == 1 else evidence.weight[:, :, None]
        fall = (fall * wide).flatten(1)
        return (flat.transpose(1, 2) @ fall[:, :, None])[:, :, 0]

    def gradients(self, user: Tensor, items: Tensor, ratings: Tensor) -> Tensor:
        """Slope times feature, summed over channels; for the softmax, expected minus own row."""
        if isinstance(self.loss, Contrast):
            return super().gradients(user, items, ratings)
        if self.loss.listwise:
            return self._expected(user)[:, None, :] - self._whole(items)
        features = self.features(items)
        slope = self.loss.slope(self.predict(user, items), ratings)[..., None] * features
        return slope if self.loss.channels == 1 else slope.sum(2)

    def influences(
        self, user: Tensor, items: Tensor, ratings: Tensor, weight: Tensor, damping: float
    ) -> Tensor:
        """By the Gram matrix of the features; for the softmax, by the covariance of the rows."""
        if isinstance(self.loss, Contrast):
            return super().influences(user, items, ratings, weight, damping)
        if self.loss.listwise:
            every, total = self.all_items, weight.sum(1, keepdim=True)
            chance = every.logits(user).softmax(-1)
            mean = every.mean(chance)
            bend = None if self.has_own else covariance(chance, self.table)

            def product(vector: Tensor) -> Tensor:
                if bend is not None:
                    return total * (bend @ vector[:, :, None])[:, :, 0]
                change = every.along(vector)
                centre = (chance * change).sum(1, keepdim=True)
                return total * every.mean(chance * (change - centre))

            slope = total * mean - self.total(self.rows(items), items, weight)
            solved = solve(product, slope, damping, CURVE_STEPS)
            return self.worth(items, solved) - (mean * solved).sum(1, keepdim=True)
        if self.loss.channels > 1:
            return super().influences(user, items, ratings, weight, damping)
        output = self.predict(user, items)
        bend = torch.func.grad(lambda o: self.loss.slope(o, ratings).sum())(output)
        slope = self.loss.slope(output, ratings)
        return linear_influences(self.features(items), slope, bend, weight, damping)
