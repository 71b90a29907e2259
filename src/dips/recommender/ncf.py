"""Neural collaborative filtering as the paper's base model, in two forms behind one interface."""

from __future__ import annotations

from abc import ABC
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from dips.data.sides import NOTHING, Sides
from dips.numerics import exact
from dips.numerics.bags import sum_rows
from dips.numerics.descent import Settle, descend_linear, descend_softmax, keep
from dips.numerics.influence import covariance, influences, linear_influences
from dips.recommender.base import CURVE_STEPS, Evidence, Recommender
from dips.recommender.losses import Contrast, Loss
from dips.stream.side import categories_of, item_of, moment_of

SPREAD = 0.05
"""Standard deviation of the entries of a vector at the start."""
USER_BIAS = 0.3
"""Loading of the user's bias at the start."""
BY_ITEM = ("vectors", "bias", "categories")
"""Tables with a row for each item."""
PAIRS = 16
"""Items of a sketch that are held against the negatives at once, about."""


def rows_of(table: Tensor, items: Tensor) -> Tensor:
    """Rows of a table; unlike indexing, its gradient is the same for any number of threads."""
    return nn.functional.embedding(items, table)


class NCF(Recommender, ABC):
    """What both forms share: a vector and a bias per item, and a prior that starts at random.

    Side information changes the item's vector and bias, and nothing else, so that scores stay what
    they are in the user's vector. Each category has a vector and a bias of its own, added to those
    of its items. Where time counts, `items` are tokens (`dips.stream.side`): a learned direction
    and a learned number, times the standardised time, are added too. All of it starts at 0.
    """

    undecayed: ClassVar[tuple[str, ...]] = (*Recommender.undecayed, "kind_bias", "trend")
    categories: Tensor

    def __init__(
        self,
        *,
        items: int,
        loss: Loss,
        dim: int,
        user_dim: int,
        spread: float,
        generator: torch.Generator,
        offset: float = 0.0,
        inner_rate: float = 0.1,
        inner_steps: int = 10,
        inner_pull: float = 0.0,
        sides: Sides = NOTHING,
    ) -> None:
        super().__init__(
            items=items,
            user_dim=user_dim,
            loss=loss,
            offset=offset,
            inner_rate=inner_rate,
            inner_steps=inner_steps,
            inner_pull=inner_pull,
        )
        self.vectors = nn.Parameter(torch.randn(items, dim, generator=generator) * spread)
        self.bias = nn.Parameter(torch.zeros(items, loss.channels))
        with torch.no_grad():
            self.user_prior[:dim] = torch.randn(dim, generator=generator) * spread
        self.has_kinds, self.has_times = bool(sides.kinds), sides.clock is not None
        if self.has_kinds:
            self.kinds = nn.Parameter(torch.zeros(sides.kinds, dim))
            self.kind_bias = nn.Parameter(torch.zeros(sides.kinds, loss.channels))
            self.register_buffer("categories", categories_of(sides, items))
        if self.has_times:
            self.pace = nn.Parameter(torch.zeros(dim))
            self.trend = nn.Parameter(torch.zeros(loss.channels))

    @property
    def table(self) -> Tensor:
        """[items, dim] the vectors of all items, with those of their categories."""
        if not self.has_kinds:
            return self.vectors
        return self.vectors + sum_rows(self.kinds, self.categories)

    @property
    def biases(self) -> Tensor:
        """[items, channels] the biases of all items, with those of their categories."""
        if not self.has_kinds:
            return self.bias
        return self.bias + sum_rows(self.kind_bias, self.categories)

    def rows(self, items: Tensor) -> Tensor:
        """[rows, n, dim] what stands for an item in a score."""
        item = self._item(items)
        rows = rows_of(self.vectors, item)
        if self.has_kinds:
            rows = rows + sum_rows(self.kinds, self.categories[item])
        if self.has_times:
            rows = rows + self._moment(items) * self.pace
        return rows

    def intercept(self, items: Tensor) -> Tensor:
        """The item's bias: [rows, n], or [rows, n, channels]."""
        item = self._item(items)
        bias = rows_of(self.bias, item) + self.offset
        if self.has_kinds:
            bias = bias + sum_rows(self.kind_bias, self.categories[item])
        if self.has_times:
            bias = bias + self._moment(items) * self.trend
        return bias if self.loss.channels > 1 else bias[..., 0]

    def embedding(self, items: Tensor) -> Tensor:
        """The item's vector."""
        return self.rows(items).detach()

    def _item(self, items: Tensor) -> Tensor:
        return item_of(items) if self.has_times else items

    def _moment(self, items: Tensor) -> Tensor:
        """[rows, n, 1] when it was, as a number to multiply with."""
        return moment_of(items)[..., None].to(self.user_prior.dtype)


@final
class DotProduct(NCF):
    """Scores linear in the user's vector (GMF): offset + bias of the item + item . user.

    For pointwise losses the user's vector has one more entry, the user's own bias; how strongly a
    rating tells of it is learned, and starts small enough that a few do not settle it. With several
    channels (stars) each has its own bias and its own scaling of the item's vector.
    """

    by_item: ClassVar[tuple[str, ...]] = BY_ITEM

    def __init__(
        self,
        *,
        loss: Loss,
        dim: int = 32,
        generator: torch.Generator | None = None,
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

    def predict(self, user: Tensor, items: Tensor) -> Tensor:
        """Linear in the user's vector."""
        features = self.features(items)
        flat = features.flatten(1, -2)  # [rows, n * channels, dim]
        scores = (flat @ user[:, :, None])[:, :, 0]
        return self.intercept(items) + scores.reshape(features.shape[:-1])

    @property
    def breadth(self) -> int:
        """Logits of all items; no pair of user and item is ever wider than a number."""
        pairs = PAIRS * self.loss.negatives if isinstance(self.loss, Contrast) else 0
        return max(self.items, pairs) if self.loss.listwise else 64

    def predict_all(self, user: Tensor) -> Tensor:
        """One product of matrices."""
        if self.loss.listwise:
            return user @ self.table.T + self.biases[:, 0] + self.offset
        return super().predict_all(user)

    def predict_some(self, user: Tensor, items: Tensor) -> Tensor:
        """One product of matrices."""
        if self.loss.listwise:
            return user @ self.rows(items).T + self.intercept(items)
        return super().predict_some(user, items)

    def read(self, evidence: Evidence, settle: Settle = keep) -> Tensor:
        """The inner loop in closed form; a contrast's by automatic differentiation."""
        if isinstance(self.loss, Contrast):
            return super().read(evidence, settle)
        start = self.user_prior.expand(evidence.item.shape[0], -1)
        rate = self.rate(evidence)
        if self.loss.listwise:
            return descend_softmax(
                self.table,
                self.biases[:, 0],
                (self.rows(evidence.item) * evidence.weight[:, :, None]).sum(1),
                evidence.weight.sum(1),
                start,
                rate,
                self.inner_steps,
                self.inner_pull,
                settle,
                None if settle is keep else exact.softmax,
            )
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
            start,
            rate,
            self.inner_steps,
            self.inner_pull,
            settle,
        )

    def slope(self, user: Tensor, evidence: Evidence) -> Tensor:
        """Slopes of the scores times features; for the softmax, expected minus own rows."""
        if isinstance(self.loss, Contrast):
            return super().slope(user, evidence)
        weight = evidence.weight[:, :, None]
        if self.loss.listwise:
            expected = self.predict_all(user).softmax(-1) @ self.table
            own = (self.rows(evidence.item) * weight).sum(1)
            return evidence.weight.sum(1, keepdim=True) * expected - own
        features = self.features(evidence.item)
        flat = features.flatten(1, -2)  # [rows, n * channels, dim]
        scores = (flat @ user[:, :, None])[:, :, 0].reshape(features.shape[:-1])
        fall = self.loss.slope(self.intercept(evidence.item) + scores, evidence.rating)
        fall = (fall * (evidence.weight if self.loss.channels == 1 else weight)).flatten(1)
        return (flat.transpose(1, 2) @ fall[:, :, None])[:, :, 0]

    def gradients(self, user: Tensor, items: Tensor, ratings: Tensor) -> Tensor:
        """Slope times feature, summed over channels; for the softmax, expected minus own row."""
        if isinstance(self.loss, Contrast):
            return super().gradients(user, items, ratings)
        if self.loss.listwise:
            expected = self.predict_all(user).softmax(-1) @ self.table
            return expected[:, None, :] - self.rows(items)
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
            chance, table = self.predict_all(user).softmax(-1), self.table
            bend = covariance(chance, table) * weight.sum(1)[:, None, None]

            def product(vector: Tensor) -> Tensor:
                return (bend @ vector[:, :, None])[:, :, 0]

            gradients = (chance @ table)[:, None, :] - self.rows(items)
            return influences(gradients, weight, product, damping, CURVE_STEPS)
        if self.loss.channels > 1:
            return super().influences(user, items, ratings, weight, damping)
        output = self.predict(user, items)
        bend = torch.func.grad(lambda o: self.loss.slope(o, ratings).sum())(output)
        slope = self.loss.slope(output, ratings)
        return linear_influences(self.features(items), slope, bend, weight, damping)


@final
class Perceptron(NCF):
    """Scores by a small network over the user's and the item's vector (the MLP form of NCF)."""

    by_item: ClassVar[tuple[str, ...]] = BY_ITEM

    def __init__(
        self,
        *,
        loss: Loss,
        dim: int = 32,
        generator: torch.Generator | None = None,
        **settings: Any,
    ) -> None:
        generator = generator or torch.Generator().manual_seed(0)
        scale = dim**-0.5
        super().__init__(
            loss=loss, dim=dim, user_dim=dim, spread=scale, generator=generator, **settings
        )

        def matrix(rows: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(rows, dim, generator=generator) * scale)

        self.from_user, self.from_item = matrix(dim), matrix(dim)
        self.middle = nn.Parameter(torch.zeros(dim))
        self.out = matrix(loss.channels)

    def predict(self, user: Tensor, items: Tensor) -> Tensor:
        """One hidden layer on the pair, a smooth non-linearity, and the item's bias."""
        thing = self.rows(items) @ self.from_item.T
        pair = (user @ self.from_user.T)[:, None, :] + thing
        score = nn.functional.silu(pair + self.middle) @ self.out.T
        return self.intercept(items) + (score if self.loss.channels > 1 else score[..., 0])
