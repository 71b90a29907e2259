"""Spectral initialisation of item vectors: items that share users start close to each other.

Where items are rare, training finds neighbours slowly. Counts in, vectors out.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dips.data.interactions import Interactions
from dips.recommender.base import Recommender
from dips.recommender.linear_scores import LinearScores
from dips.recommender.memory_based import event_items, event_users

ITERATIONS = 3
"""Number of power iterations."""
OVERSAMPLING = 32
"""Number of directions that the power iteration follows beyond those needed."""
NOISE = 1e-4
"""Standard deviation of noise: items without interactions get a random direction."""


def initialise_vectors(
    model: Recommender, data: Interactions, seed: int, device: str = "cpu"
) -> None:
    """Replace the item vectors of a recommender with cosine scores by spectral ones, in place.

    Other recommenders stay as they are.

    Args:
        model: The recommender.
        data: Training interactions.
        seed: Seed of the random numbers.
        device: Where to compute.
    """
    if not (isinstance(model, LinearScores) and model.cosine):
        return
    generator = torch.Generator().manual_seed(seed)
    start = spectral_vectors(data, model.vectors.shape[1], generator, device)
    with torch.no_grad():
        model.vectors.copy_(start)
        if isinstance(model.table, nn.Parameter):  # output vectors, or the same ones
            model.table.copy_(start)


def spectral_vectors(
    data: Interactions, dim: int, generator: torch.Generator, device: str = "cpu"
) -> Tensor:
    """Return item vectors of norm 1 whose products approximate the cosines of item-kNN.

    These are singular vectors of the user-item matrix. Its rows and columns are divided by a power
    of their counts: long histories and popular items say less. A random rotation spreads them over
    all dimensions.

    Args:
        data: Training interactions.
        dim: Length of a vector.
        generator: Source of random numbers.
        device: Where to compute.

    Returns:
        [items, dim].
    """
    item, user = event_items(data), event_users(data)
    item_count = torch.bincount(item, minlength=data.items) + 1
    lengths = torch.bincount(user, minlength=data.users)
    value = item_count[item] ** -0.5 * lengths[user] ** -0.25
    matrix = torch.sparse_coo_tensor(
        torch.stack([user, item]), value, (data.users, data.items), check_invariants=True
    ).coalesce()
    matrix = matrix.to(device)
    rank = min(dim + OVERSAMPLING, data.users, data.items)
    basis = torch.randn(data.items, rank, generator=generator).to(device)
    for _ in range(ITERATIONS):
        basis = torch.linalg.qr(matrix.t() @ (matrix @ basis))[0]
    projected = (matrix @ basis).double()
    size, rotation = torch.linalg.eigh(projected.T @ projected)  # ascending
    found = (basis @ (rotation * size.clamp_min(0).sqrt()).flip(1)[:, :dim].float()).cpu()
    vectors = NOISE * torch.randn(data.items, dim, generator=generator)
    vectors[:, : found.shape[1]] += found
    spread: Tensor = torch.linalg.qr(torch.randn(dim, dim, generator=generator))[0]
    return functional.normalize(vectors, dim=1) @ spread
