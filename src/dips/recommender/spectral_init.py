"""Where vectors of items may start: those that share users lie together. Counts in, vectors out.

Where items are rare, learning finds neighbours slowly; this finds them before it begins.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dips.data.interactions import Interactions
from dips.recommender.base import Recommender
from dips.recommender.linear_scores import Linear
from dips.recommender.memory_based import events, owners

ROUNDS, SPARE = 3, 32
"""Of the power iteration, and the directions that it follows besides those asked for."""
HUM = 1e-4
"""How loud chance is beside what is known: items that nobody met still point somewhere."""


def begin(model: Recommender, data: Interactions, seed: int, device: str = "cpu") -> None:
    """Where scores are cosines, let the vectors of items start from who met what; in place."""
    if not (isinstance(model, Linear) and model.cosine):
        return
    generator = torch.Generator().manual_seed(seed)
    start = shared_users(data, model.vectors.shape[1], generator, device)
    with torch.no_grad():
        model.vectors.copy_(start)
        if isinstance(model.table, nn.Parameter):  # apart from what is read, or the same
            model.table.copy_(start)


def shared_users(
    data: Interactions, dim: int, generator: torch.Generator, device: str = "cpu"
) -> Tensor:
    """[items, dim] vectors of length 1 whose products are about the cosines of item-kNN.

    The singular vectors of who met what. Rows and columns are divided by a power of how much they
    hold: long histories and popular items say less. A random turn spreads them over all entries.
    """
    item, user = events(data), owners(data)
    fans = torch.bincount(item, minlength=data.items) + 1
    lengths = torch.bincount(user, minlength=data.users)
    value = fans[item] ** -0.5 * lengths[user] ** -0.25
    met = torch.sparse_coo_tensor(
        torch.stack([user, item]), value, (data.users, data.items), check_invariants=True
    ).coalesce()
    met = met.to(device)
    rank = min(dim + SPARE, data.users, data.items)
    basis = torch.randn(data.items, rank, generator=generator).to(device)
    for _ in range(ROUNDS):
        basis = torch.linalg.qr(met.t() @ (met @ basis))[0]
    seen = (met @ basis).double()
    size, turn = torch.linalg.eigh(seen.T @ seen)  # the small ones first
    found = (basis @ (turn * size.clamp_min(0).sqrt()).flip(1)[:, :dim].float()).cpu()
    vectors = HUM * torch.randn(data.items, dim, generator=generator)
    vectors[:, : found.shape[1]] += found
    spread: Tensor = torch.linalg.qr(torch.randn(dim, dim, generator=generator))[0]
    return functional.normalize(vectors, dim=1) @ spread
