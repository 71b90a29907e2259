"""Spectral item vectors: items that share users are close to each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dips.data.interactions import Interactions, from_arrays
from dips.recommender.linear_scores import LinearScores
from dips.recommender.losses import FullSoftmax
from dips.recommender.registry import RecommenderSpec, make_recommender
from dips.recommender.session import SessionGRU
from dips.recommender.spectral_init import initialise_vectors, spectral_vectors
from dips.testing import random_world


def _start(data: Interactions, dim: int, seed: int = 0) -> torch.Tensor:
    return spectral_vectors(data, dim, torch.Generator().manual_seed(seed))


def test_items_that_share_users_lie_together() -> None:
    """Two circles of users who share no item; item 8 is nobody's."""
    histories = [[0, 1, 2], [1, 2, 3], [0, 3], [4, 5], [5, 6, 7], [4, 7], [8]]
    lengths, item = [len(history) for history in histories], np.concatenate(histories)
    everyone = from_arrays(np.repeat(np.arange(7), lengths), item, None, np.arange(len(item)))
    vectors = _start(everyone.select(range(6)), 2)
    products = vectors @ vectors.T
    assert (products[:4, :4] > 0.99).all()
    assert (products[4:8, 4:8] > 0.99).all()
    assert products[:4, 4:8].abs().max() < 0.01
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(9))


def test_with_room_for_all_products_are_weighted_cosines() -> None:
    data = random_world([9, 3, 12, 5, 7, 11, 4, 8], items=6, seed=2, explicit=False)
    counts = torch.zeros(data.users, 6, dtype=torch.float64)
    for user in range(data.users):
        for place in range(data.starts[user], data.starts[user] + data.lengths[user]):
            counts[user, data.item[place]] += 1
    scaled = counts / (counts.sum(0) + 1).sqrt() / counts.sum(1, keepdim=True) ** 0.25
    length = scaled.norm(dim=0)
    expected = scaled.T @ scaled / (length[:, None] * length)
    vectors = _start(data, 10).double()  # more than there are items
    torch.testing.assert_close(vectors @ vectors.T, expected, atol=2e-3, rtol=0)


@pytest.mark.parametrize(("kind", "tied"), [("gru", True), ("gru", False), ("sasrec", True)])
def test_only_recommenders_with_cosine_scores_are_initialised(kind: str, tied: bool) -> None:
    data = random_world([9, 3, 12, 5], items=6, seed=2, explicit=False)
    spec = RecommenderSpec(kind=kind, loss="softmax", items=6, dim=3, tie_embeddings=tied)
    plain, model = make_recommender(spec), make_recommender(replace(spec, cosine=True))
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    initialise_vectors(plain, data, seed=4)
    initialise_vectors(model, data, seed=4)
    expected = _start(data, 3, seed=4)
    assert isinstance(model, LinearScores)
    assert torch.equal(model.vectors, expected)
    assert torch.equal(model.table, expected)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, before[name])


def test_both_layers_of_a_session_model_are_initialised() -> None:
    data = random_world([9, 3, 12, 5], items=6, seed=2, explicit=False)
    model = SessionGRU(items=6, loss=FullSoftmax(), dim=3, cosine=True)
    initialise_vectors(model, data, seed=4)
    expected = _start(data, 3, seed=4)
    assert torch.equal(model.vectors, expected)
    assert torch.equal(model.table, torch.cat([expected, expected], 1))


def test_a_function_of_the_generator() -> None:
    data = random_world([9, 3, 12, 5], items=6, seed=2, explicit=False)
    assert torch.equal(_start(data, 3), _start(data, 3))
    assert not torch.equal(_start(data, 3), _start(data, 3, seed=1))
