"""A plain SASRec in torch (Kang and McAuley 2018), as users would write it without `dips`.

Item and position embeddings, two attention blocks, and cross entropy with tied item vectors. It is
trained on whole histories, cut into pieces. Knows nothing about sketches or the protocol.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.measure import Clock, Took, best
from dips.data.interactions import Interactions
from dips.recommender.memory_based import event_items

LENGTH = 50
"""Most items that are read. Longer histories are cut into pieces."""


class PlainSASRec(nn.Module):
    """Self-attention over the items before each item.

    Positions are counted from the first item that is read.
    """

    def __init__(self, items: int, dim: int = 64, heads: int = 1, dropout: float = 0.2) -> None:
        super().__init__()
        self.item = nn.Embedding(items, dim)
        self.position = nn.Embedding(LENGTH, dim)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                dim, heads, 4 * dim, dropout, batch_first=True, norm_first=True
            )
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(dim)
        for table in (self.item, self.position):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, item: Tensor) -> Tensor:
        """Return the state after each item, [rows, n, dim]; padding stands at the end."""
        n = item.shape[1]
        x = self.dropout(self.item(item) + self.position.weight[:n])
        future = torch.ones(n, n, dtype=torch.bool, device=item.device).triu(1)
        for block in self.blocks:
            x = block(x, src_mask=future)
        return self.norm(x)

    @torch.no_grad()
    def scores(self, item: Tensor, count: Tensor) -> Tensor:
        """Return scores of all items, [rows, items], after the first `count` items of each row."""
        self.eval()
        rows = torch.arange(len(item), device=item.device)
        return self(item)[rows, (count - 1).clamp_min(0)] @ self.item.weight.T


class Fitted(NamedTuple):
    """A trained model and the time of its training."""

    model: PlainSASRec
    epoch: Took
    """The fastest epoch, without validation."""
    total: Took
    """All epochs with their validation, until validation was not better `patience` times."""
    epochs: int


def fit(
    data: Interactions,
    validate: Callable[[PlainSASRec], float],
    *,
    epochs: int = 100,
    patience: int = 3,
    batch: int = 128,
    learning_rate: float = 1e-3,
    device: str = "cpu",
    **settings: Any,
) -> Fitted:
    """Train with Adam until validation is no longer better, and return the best epoch.

    Args:
        data: Training users.
        validate: From a model to a metric; higher is better.
        epochs: Most epochs.
        patience: Epochs without a better validation before training stops.
        batch: Pieces of histories in a batch.
        learning_rate: Of Adam.
        device: Where to train.
        **settings: Settings of `PlainSASRec`.
    """
    torch.manual_seed(0)
    clock, took = Clock(device), list[Took]()
    model = PlainSASRec(data.items, **settings).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    table = pieces(data).to(device)
    best_value, best_epoch, state = float("-inf"), 0, model.state_dict()
    for epoch in range(1, epochs + 1):
        began = clock.took()
        model.train()
        for rows in _batches(table, batch):
            optimizer.zero_grad()
            _loss(model, rows).backward()
            optimizer.step()
        took.append(clock.took().less(began))
        value = validate(model)
        if value > best_value:
            best_value, best_epoch, state = value, epoch, copy.deepcopy(model.state_dict())
        if epoch - best_epoch >= patience:
            break
    model.load_state_dict(state)
    return Fitted(model, best(took), clock.took(), epoch)


def pieces(data: Interactions) -> Tensor:
    """Return the histories as rows of up to LENGTH + 1 items, padded with -1 at the end.

    The last item of a piece is the first one of the next, so every item but a user's first is
    predicted once.
    """
    found = [
        piece
        for history in event_items(data).split(data.lengths.tolist())
        for piece in _cut(history)
    ]
    return nn.utils.rnn.pad_sequence(found, batch_first=True, padding_value=-1)


def _cut(history: Tensor) -> list[Tensor]:
    return [history[low : low + LENGTH + 1] for low in range(0, max(1, len(history) - 1), LENGTH)]


def _batches(table: Tensor, batch: int) -> Iterator[Tensor]:
    """Yield random batches of pieces, as wide as their longest piece."""
    for rows in torch.randperm(len(table)).split(batch):
        chosen = table[rows.to(table.device)]
        yield chosen[:, : int((chosen >= 0).sum(1).max())]


def _loss(model: PlainSASRec, rows: Tensor) -> Tensor:
    """Return the mean cross entropy of every next item, over all items."""
    target = rows[:, 1:]
    there = target >= 0
    states, target = model(rows[:, :-1].clamp_min(0))[there], target[there]
    return nn.functional.cross_entropy(states @ model.item.weight.T, target)
