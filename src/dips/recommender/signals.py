"""What a policy may ask of a recommender, computed so that it does not depend on the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor

from dips.numerics.chunks import rows_at_once
from dips.numerics.exact import STATE_BITS, quantize
from dips.recommender.base import Evidence, Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.kernel_inputs import residuals
from dips.recommender.losses import Contrast
from dips.recommender.predicted_score import Around, around_of, is_quick, predicted_score
from dips.recommender.stacked import StackedRecommenders
from dips.sketch.records import Candidates, Sketch

CHUNK = {"cpu": 1 << 24, "cuda": 1 << 27}
"""Most numbers in the widest intermediate of a full softmax."""


def rounding(value: Tensor) -> Tensor:
    """Round a user's state to the grid of decisions."""
    return quantize(value, STATE_BITS)


def as_evidence(entries: Sketch, weight: Tensor, seen: Tensor) -> Evidence:
    """A sketch as the recommender reads it once so many [rows] interactions have happened."""
    age = torch.where(entries.present, seen[:, None] - 1 - entries.position, 0).double()
    slots, repeats = (weight > 0).sum(1), entries.repeats.clamp_min(1).double()
    return Evidence(entries.token, entries.rating.double(), weight, slots, age, repeats)


@final
class StackReading:
    """The users' vectors after reading, and the candidates seen from there."""

    def __init__(self, signals: StackSignals, user: Tensor) -> None:
        self._signals, self._user = signals, user

    def losses(self) -> Tensor:
        """[rows, candidates]."""
        return self._signals.ask(_losses, self._user)

    def influences(self, damping: float) -> Tensor:
        """[rows, candidates]."""

        def ask(
            model: Recommender, item: Tensor, rating: Tensor, present: Tensor, age: Tensor,
            repeats: Tensor, user: Tensor,
        ) -> Tensor:  # fmt: skip
            left = rounding(model.strength(age, repeats))
            return left * model.influences(user, item, rating, left * present, damping)

        return self._signals.ask(ask, self._user)


@final
class StackSignals:
    """Signals for rows of users in run-major order: the first rows belong to the first run."""

    def __init__(
        self, quantized: StackedRecommenders, sketch: Sketch, candidates: Candidates
    ) -> None:
        self._stack, self._sketch, self._candidates = quantized, sketch, candidates

    def loss(self) -> Tensor:
        """[rows, candidates] with the user adapted to the sketch before the refresh."""
        return self._read(self._sketch, self._sketch.present.double()).losses()

    def embedding(self) -> Tensor:
        """[rows, candidates, dim]."""
        return self._call(lambda model, items: model.embedding(items), self._candidates.item)

    def residual(self) -> Tensor:
        """[rows, candidates] how far the outcome lies above the prediction, times two for mse."""
        found = residuals(self._stack, self._sketch, self._candidates)
        if found is not None:
            return found
        user = self._read(self._sketch, self._sketch.present.double())
        return self.ask(_residual, user._user)

    def predicted_score(self) -> Tensor:
        """[rows, candidates] what is predicted, roughly where that is quicker."""
        sketch, weight = self._sketch, self._sketch.present.double()
        if not is_quick(self._stack.template):
            return self.ask(_expected, self._read(sketch, weight)._user)

        def ask(
            model: DotProduct, mean: Tensor, bend: Tensor, norm: Tensor, items: Tensor,
            *fields: Tensor,
        ) -> Tensor:  # fmt: skip
            return predicted_score(
                model, Around(mean, bend, norm), Evidence(*fields), items, rounding
            )

        evidence = as_evidence(sketch, weight, self._candidates.seen)
        near = around_of(self._stack)
        wide = self._candidates.item.shape[1] * near.mean.shape[1]
        return self._call(ask, self._candidates.item, *evidence, known=near, wide=wide)

    def read(self, weights: Tensor) -> StackReading:
        """Adapt to the candidates with these weights."""
        return self._read(self._candidates.entries, weights.double())

    def ask(self, function: Callable[..., Tensor], *rows: Tensor) -> Tensor:
        """`function(model, item, rating, present, age, repeats, *rows)` for every run."""
        entries = self._candidates
        seen = as_evidence(entries.entries, entries.present.double(), entries.seen)
        told = (seen.item, seen.rating, seen.weight, seen.age, seen.repeats)
        return self._call(function, *told, *rows)

    def _read(self, entries: Sketch, weight: Tensor) -> StackReading:
        evidence = as_evidence(entries, weight, self._candidates.seen)
        user = self._call(lambda model, *fields: model.read(Evidence(*fields), rounding), *evidence)
        return StackReading(self, user)

    def _call(
        self,
        function: Callable[..., Any],
        *rows: Tensor,
        known: Sequence[Tensor] = (),
        wide: int = 0,
    ) -> Tensor:
        """Split the rows by run, in pieces of bounded size, and put the answers together.

        What is `known` [runs, ...] comes first, and whole. A row needs room for `wide` numbers; 0:
        as many as a prediction.
        """
        runs = self._stack.runs
        fields = [field.reshape(runs, -1, *field.shape[1:]) for field in rows]
        count = fields[0].shape[1]
        wide = wide or self._stack.template.breadth
        device = rows[0].device
        piece = rows_at_once(CHUNK[device.type], wide * runs, device)
        answers = [
            self._stack.call(function, *known, *(field[:, low : low + piece] for field in fields))
            for low in range(0, count, piece)
        ]
        return torch.cat(answers, 1).flatten(0, 1).detach()


def _losses(
    model: Recommender, item: Tensor, rating: Tensor, present: Tensor, age: Tensor,
    repeats: Tensor, user: Tensor,
) -> Tensor:  # fmt: skip
    del present, age, repeats
    return model.losses(user, item, rating)


def _expected(
    model: Recommender, item: Tensor, rating: Tensor, present: Tensor, age: Tensor,
    repeats: Tensor, user: Tensor,
) -> Tensor:  # fmt: skip
    del rating, present, age, repeats
    return model.loss.estimate(model.predict(user, item))


def _residual(
    model: Recommender, item: Tensor, rating: Tensor, present: Tensor, age: Tensor,
    repeats: Tensor, user: Tensor,
) -> Tensor:  # fmt: skip
    del present, age, repeats
    if isinstance(model.loss, Contrast):
        return -model.contrast(model.loss.slope, user, item)
    if model.loss.listwise:
        return 1 - model.predict_all(user).softmax(-1).gather(-1, item)
    slope = -model.loss.slope(model.predict(user, item), rating)
    return slope if model.loss.channels == 1 else slope.sum(-1)
