"""Walk many users through all their refreshes in one launch, for two networks and two rules.

One program per user and run, see `walk_kernels` and `asking_kernels`; the same bits as the walk in
plain torch. Needs triton, which comes with builds of torch for CUDA. Knows nothing of policies:
tensors in, and what was given to remember changes in place.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from dips.numerics.exact import STATE_BITS, STATE_LIMIT, rounded


class Way(NamedTuple):
    """Who walks where; users of all runs in run-major order."""

    start: Tensor  # [rows] first event
    length: Tensor  # [rows] number of events
    warmup: Tensor  # [rows] events before predictions count
    base: Tensor  # [rows] the row of prediction t is base + t
    due: Tensor  # [rows] how many of the refreshes come before the end
    refreshes: Tensor  # [refreshes, 3] seen, how many of them are new, predictions that follow
    item: Tensor  # [events]
    rating: Tensor  # [events] float32
    time: Tensor  # [events]


class Memory(NamedTuple):
    """What walking changes; what is None is not noted."""

    position: Tensor  # [rows, size] of the sketch, as of now; full where a refresh is due
    repeats: Tensor  # [rows, size]
    kept: Tensor  # [predictions, size] int32 events
    kept_repeats: Tensor | None  # [predictions, size]
    told: Tensor | None  # [predictions, candidates] float32, on a refresh's first prediction
    kept_scores: Tensor | None  # [predictions, size] float32
    scores: Tensor | None  # [rows, size] float32, as of now


class Reader(NamedTuple):
    """Scores linear in a user's vector that descends on squared errors, for each run."""

    vectors: Tensor  # [runs, items, dim]
    intercept: Tensor  # [runs, items]
    prior: Tensor  # [runs, dim + 1] where a user starts; the last entry is the user's bias
    dials: Tensor  # [runs, 3 + size] the loading of the user's bias, twice the pull to the start,
    # and step sizes for 0, 1, ... entries
    steps: int
    pulls: bool


class Listener(NamedTuple):
    """Scores linear in a user's vector that descends on a quadratic, for each run; on the grid."""

    vectors: Tensor  # [runs, items, dim]
    intercept: Tensor  # [runs, items] scores at the start
    pull: Tensor  # [runs, items, dim] where an entry pulls the user to
    bend: Tensor  # [runs, dim, dim] how it pulls back as the user has moved; symmetric
    norm: Tensor  # [runs] no direction bends more
    rate: Tensor  # [runs, 1 + size] step sizes for 0, 1, ... entries
    strength: Tensor  # [runs, ages] what an entry of this age counts for; the last: or older
    steps: int


class Glance(NamedTuple):
    """Sketches to read, and what to look at from there, all rows of the first run first."""

    kept: Tensor  # [rows, size] items; -1 where empty
    kept_rating: Tensor  # [rows, size]
    item: Tensor  # [rows, n]
    rating: Tensor  # [rows, n]


class SetNet(NamedTuple):
    """A network over the set of candidates, for each run; all on the grid."""

    scale: Tensor  # [runs, 3] centre and spread of ratings, slope per newer candidate
    enter: Tensor  # [runs, dim, hidden] from an item's vector to the first layer
    enter_bias: Tensor  # [runs, hidden]
    straight: Tensor  # [runs, dim] from an item's vector to the score
    own: Tensor  # [runs, 7, hidden] rating, what is told, age, rank, elapsed, repeats, twins
    direct: Tensor  # [runs, 7]
    alone: Tensor  # [runs, hidden, hidden] inputs first
    others: Tensor  # [runs, hidden, hidden]
    bias: Tensor  # [runs, hidden]
    last: Tensor  # [runs, hidden]
    logs: Tensor  # [any] log1p of whole numbers from 0 on


class Question(NamedTuple):
    """Candidates that a network over sets is to score, all rows of the first run first."""

    position: Tensor  # [rows, candidates]; -1 where empty
    item: Tensor
    rating: Tensor
    time: Tensor
    repeats: Tensor
    seen: Tensor  # [rows]
    weight: Tensor  # [rows, candidates] on the grid
    told: Tensor  # by the recommender
    embedding: Tensor  # [rows, candidates, dim]


class Kept(NamedTuple):
    """Sketches of users that arrivals change; empty slots come last, at position -1."""

    position: Tensor  # [users, size]
    item: Tensor
    rating: Tensor
    time: Tensor
    repeats: Tensor
    side: Tensor
    seen: Tensor  # [users]


class Arrivals(NamedTuple):
    """Interactions in the order in which they arrive."""

    row: Tensor  # [arrivals] whose
    item: Tensor
    rating: Tensor
    time: Tensor
    side: Tensor


class SetLayers(NamedTuple):
    """The same with what each item adds worked out."""

    scale: Tensor
    table: Tensor  # [runs, items, hidden] the share of an item in the first layer, and its bias
    straight: Tensor  # [runs, items] the share of an item in the score
    own: Tensor
    direct: Tensor
    alone: Tensor
    others: Tensor
    bias: Tensor
    last: Tensor
    logs: Tensor


class ItemLayers(NamedTuple):
    """A network from the ratings of the candidates to a score for each item, for each run."""

    enter: Tensor  # [runs, items, hidden]
    enter_bias: Tensor  # [runs, hidden]
    middle: Tensor  # [runs, hidden, hidden] inputs first
    middle_bias: Tensor  # [runs, hidden]
    leave: Tensor  # [runs, items, hidden]
    leave_bias: Tensor  # [runs, items]


def walk_set(
    way: Way,
    memory: Memory,
    layers: SetLayers,
    teller: Reader | Listener | None,
    period: int,
    warps: int = 0,
) -> None:
    """Walk under a network over sets, at most `period` new at once, told residuals or predicted_scores."""
    from dips.kernels.triton_rollout import set_walk

    runs, items, hidden = layers.table.shape
    rows, size = memory.position.shape
    width, units = _power(size + period), _power(hidden)
    dim = steps = pulls = square = 0
    read: tuple[Tensor | None, ...] = (None,) * 7
    if teller is not None:
        dim = teller.vectors.shape[2]
    if isinstance(teller, Reader):
        steps, pulls = teller.steps, int(teller.pulls)
        read = (*_tables(teller), _full(teller), None, None, None)
    elif isinstance(teller, Listener):
        steps, square = teller.steps, min(16, _power(dim) ** 2 // 1024)  # 32 numbers in a thread
        bend = pad(_wide(teller.bend), (0, 0, 0, _power(dim) - dim)).contiguous()
        dials = torch.stack([teller.rate[:, -1], teller.norm], 1)
        tables = _wide(teller.vectors), teller.intercept.contiguous(), None, dials
        read = (*tables, _wide(teller.pull), bend, teller.strength.contiguous())
    across = ("table", "own", "alone", "others", "bias", "last")
    wide = layers._replace(**{name: _wide(getattr(layers, name)) for name in across})
    noted = memory.told
    set_walk[(rows,)](
        *way,
        *memory,
        *(field.contiguous() for field in wide),
        _ranks(size, period, layers.logs),
        *read,
        layers.table.new_empty(rows * (width + 1) * units),
        rows // runs,
        runs,
        items,
        0 if noted is None else noted.shape[1],
        teller.strength.shape[1] if isinstance(teller, Listener) else 0,
        SIZE=size,
        STEPS=steps,
        GRAM=int(size < dim + 1),  # as `descent.descend_linear` decides
        PULL=pulls,
        DIM=dim,
        HIDDEN=hidden,
        N=width,
        K=_power(size),
        D=_power(dim),
        H=units,
        num_warps=warps or max(_warps(width, units), square),
        num_stages=1,
        enable_fp_fusion=False,
    )


def walk_items(way: Way, memory: Memory, layers: ItemLayers, period: int, warps: int = 0) -> None:
    """Walk under a network from ratings to a score for each item."""
    from dips.kernels.triton_rollout import item_walk

    runs, items, hidden = layers.enter.shape
    rows, size = memory.position.shape
    width, units = _power(size + period), _power(hidden)
    item_walk[(rows,)](
        *way[:-1],
        *memory[:4],
        *memory[5:],
        *(_wide(field) for field in layers[:-1]),
        layers.leave_bias.contiguous(),
        layers.enter.new_empty(rows * units),
        rows // runs,
        runs,
        items,
        SIZE=size,
        HIDDEN=hidden,
        N=width,
        H=units,
        num_warps=warps or _warps(width, units),
        num_stages=1,
        enable_fp_fusion=False,
    )


def walk_hardest(way: Way, memory: Memory, reader: Reader, period: int) -> None:
    """Walk under the rule that keeps what is predicted worst."""
    from dips.kernels.triton_rules import hardest_walk

    runs, items, dim = reader.vectors.shape
    rows, size = memory.position.shape
    width = _power(size + period)
    hardest_walk[(rows,)](
        *way[:-1],
        *memory[:4],
        *memory[5:],
        *_tables(reader),
        _full(reader),
        rows // runs,
        runs,
        items,
        SIZE=size,
        STEPS=reader.steps,
        GRAM=int(size < dim + 1),
        PULL=int(reader.pulls),
        DIM=dim,
        N=width,
        K=_power(size),
        D=_power(dim),
        num_warps=_warps(width, _power(dim)),
        num_stages=1,
        enable_fp_fusion=False,
    )


def walk_influence(way: Way, memory: Memory, reader: Reader, damping: float, period: int) -> None:
    """Walk under the rule that adds what would lower the loss of all most, one by one.

    Only for fewer candidates than entries in a user's vector.
    """
    from dips.kernels.triton_rules import influence_walk

    runs, items, dim = reader.vectors.shape
    rows, size = memory.position.shape
    width = _power(size + period)
    influence_walk[(rows,)](
        *way[:-1],
        *memory[:4],
        *memory[5:],
        *_tables(reader),
        reader.dials.contiguous(),
        reader.dials.new_tensor(damping),
        rows // runs,
        runs,
        items,
        SIZE=size,
        STEPS=reader.steps,
        PULL=int(reader.pulls),
        DIM=dim,
        N=width,
        D=_power(dim),
        num_warps=_warps(width, width),
        num_stages=1,
        enable_fp_fusion=False,
    )


def _tables(reader: Reader) -> tuple[Tensor, Tensor, Tensor]:
    """What is known of items and users, as programs read it."""
    return _wide(reader.vectors), reader.intercept.contiguous(), reader.prior.contiguous()


def _full(reader: Reader) -> Tensor:
    """[runs, 3] the loading of the user's bias, the step size for full sketches, the pull."""
    return reader.dials[:, [0, -1, 1]]


def _ranks(size: int, period: int, like: Tensor) -> Tensor:
    """[period + 1, candidates] the share of newer candidates, by how many are new at once."""
    total = size + torch.arange(period + 1, device=like.device).double()[:, None]
    newer = total - 1 - torch.arange(_power(size + period), device=like.device)
    return rounded(newer.clamp_min(0) / total, STATE_BITS, STATE_LIMIT)


def _power(count: int) -> int:
    """The next power of two."""
    return 1 << max(0, count - 1).bit_length()


def _warps(width: int, units: int) -> int:
    """So many that a thread has 8 numbers of the widest layer, where that is possible."""
    return min(16, max(1, width * units // 256))


def _wide(field: Tensor) -> Tensor:
    """The last axis filled up to a power of two with zeros."""
    return pad(field, (0, _power(field.shape[-1]) - field.shape[-1])).contiguous()
