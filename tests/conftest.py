"""Tiny worlds and the house's hypothesis profile, for every test."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from hypothesis import settings

from dips.data.interactions import Interactions
from dips.recommender.dot import DotProduct
from dips.recommender.linearised import LinearisedDotProduct
from dips.recommender.losses import (
    BinaryCrossEntropy,
    CategoricalCrossEntropy,
    FullSoftmax,
    Loss,
    SquaredError,
)
from dips.stream.users import EventColumns, Stream, make_stream
from dips.testing import random_world

Model = TypeVar("Model", DotProduct, LinearisedDotProduct)

os.environ.setdefault("NUMBA_CACHE_DIR", str(Path.home() / ".cache" / "dips"))
"""Commands that tests start with a cache of their own still share the compiled kernels."""

settings.register_profile("dips", deadline=None, derandomize=True, max_examples=40, database=None)
settings.load_profile("dips")

LOSSES: dict[str, Loss] = {
    "mse": SquaredError(),
    "bce": BinaryCrossEntropy(3.0),
    "cce": CategoricalCrossEntropy((1.0, 2.0, 3.0, 4.0, 5.0)),
    "softmax": FullSoftmax(),
}


@pytest.fixture
def world() -> Callable[..., Interactions]:
    """Make a random world: `world(lengths, items=..., seed=..., explicit=...)`."""
    return random_world


@pytest.fixture
def stream_of() -> Callable[[Sequence[Interactions]], Stream]:
    """A stream of parts over the columns that they share."""
    return lambda parts: make_stream(parts, EventColumns.of(parts[0]))


@pytest.fixture(params=list(LOSSES))
def loss(request: pytest.FixtureRequest) -> Loss:
    """Each loss in turn."""
    return LOSSES[request.param]


@pytest.fixture
def losses() -> dict[str, Loss]:
    """All losses by name, fitted to five stars."""
    return LOSSES


@pytest.fixture
def dot() -> Callable[..., DotProduct]:
    """A dot-product recommender whose vectors are large enough to matter."""

    def make(loss: Loss, items: int = 8, dim: int = 6, seed: int = 0, **rest: float) -> DotProduct:
        generator = torch.Generator().manual_seed(seed)
        model = DotProduct(
            items=items,
            loss=loss,
            dim=dim,
            offset=0.0 if loss.listwise else 0.4,
            generator=generator,
            **rest,  # type: ignore[arg-type]
        )
        return _with_large_vectors(model, generator)

    return make


@pytest.fixture
def linearised() -> Callable[..., LinearisedDotProduct]:
    """A recommender with a linearised inner loop, whose vectors are large enough to matter."""

    def make(
        loss: Loss | None = None, items: int = 8, dim: int = 6, seed: int = 0, **rest: float
    ) -> LinearisedDotProduct:
        generator = torch.Generator().manual_seed(seed)
        model = LinearisedDotProduct(
            items=items,
            loss=loss or FullSoftmax(),
            dim=dim,
            generator=generator,
            **rest,  # type: ignore[arg-type]
        )
        with torch.no_grad():
            model.log_entry_scale.fill_(0.3)
        return _with_large_vectors(model, generator)

    return make


def _with_large_vectors(model: Model, generator: torch.Generator) -> Model:
    """Return the model with larger vectors, and random biases and input embeddings."""
    with torch.no_grad():
        model.vectors.mul_(8.0)
        model.user_prior.mul_(8.0)
        model.bias.copy_(torch.randn(model.bias.shape, generator=generator) / 4)
        if not model.tie_embeddings:
            model.input_offset.copy_(torch.randn(model.input_offset.shape, generator=generator) / 2)
    return model
