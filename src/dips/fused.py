"""The short way through a walk: one launch for all users and refreshes, where that is possible.

It is for `Greedy` choices of the two networks without side information on CUDA; the dot product
with squared error may be asked for residuals. The result is the same to the bit; everything else,
and machines without triton, walk refresh by refresh (`dips.rollout`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from dips.numerics import exact
from dips.numerics.walking import (
    ItemLayers,
    Memory,
    Reader,
    SetLayers,
    Way,
    walk_items,
    walk_set,
)
from dips.policy.base import Policy
from dips.policy.network import RatingNetwork
from dips.policy.setnetwork import OWN, SetNetwork
from dips.policy.stacked import Stacked
from dips.recommender.base import Evidence
from dips.recommender.losses import SquaredError
from dips.recommender.ncf import NCF, DotProduct
from dips.recommender.stack import Stack
from dips.sketch.records import Sketch
from dips.sketch.selection import Greedy, Selector
from dips.stream.users import Stream
from dips.trace import Asked

DEVICES = ("cuda",)
"""Where programs run; Triton's interpreter, for tests, runs on the CPU."""
SLOTS, WIDTH = 64, 128
"""The largest sketch, and the most candidates, that a program can hold."""
ROOM = 1 << 28
"""The most numbers in a table of items, and in the room that programs write to."""

Refresh = tuple[int, int, int]
"""Interactions seen, how many of them are new, predictions that follow."""


@torch.no_grad()
def advance(
    policy: Policy,
    settled: Stack | None,
    selector: Selector,
    stream: Stream,
    base: Tensor,
    refreshes: Sequence[Refresh],
    sketch: Sketch,
    kept: Tensor,
    worth: tuple[Tensor, Tensor] | None,
    notes: Asked | None,
) -> bool:
    """Take all users through these refreshes and note what there is to note; False: not possible.

    `settled` are the recommenders as decisions see them, where the policy asks.
    """
    size, period = kept.shape[1], max((new for _, new, _ in refreshes), default=0)
    stacked = _stacked(policy, stream) if refreshes else None
    answers = {} if notes is None else notes.answers
    if (
        stacked is None
        or not isinstance(selector, Greedy)
        or not _answered(stacked, settled, set(answers))
        or not _fits(stacked, settled, size, period, stream)
    ):
        return False
    memory = Memory(
        sketch.position,
        sketch.repeats,
        kept,
        None if notes is None else notes.repeats,
        answers.get("residual"),
        *(worth or (None, None)),
    )
    way = _way(stream, base, refreshes)
    with torch.cuda.device_of(kept):  # type: ignore[no-untyped-call]
        if isinstance(stacked.template, SetNetwork):
            reader = _reader(settled, size) if settled and "residual" in stacked.asks else None
            walk_set(way, memory, _set_layers(stacked, settled, stream), reader, period)
        else:
            walk_items(way, memory, _item_layers(stacked), period)
    _look_up(sketch, stream)
    return True


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _stacked(policy: Policy, stream: Stream) -> Stacked | None:
    """The policies of all runs, if there are programs for them here."""
    if stream.start.device.type not in DEVICES or not _has_triton():
        return None
    network = policy.template if isinstance(policy, Stacked) else policy
    if isinstance(network, SetNetwork):
        known = network.side.width == 0
    elif isinstance(network, RatingNetwork):
        known = not network.blocks and not (network.training and network.dropout)
    else:
        return None
    if not known:
        return None
    if isinstance(policy, Stacked):
        return policy if policy.runs == stream.runs else None
    return Stacked.of([network] * stream.runs, stream.start.device)


def _fits(stacked: Stacked, settled: Stack | None, size: int, period: int, stream: Stream) -> bool:
    """Whether sketches, tables and the room to write to are small enough."""
    if isinstance(stacked.template, RatingNetwork):
        units, table = stacked.state["enter"].shape[2], stacked.state["enter"].numel()
    else:
        units = stacked.state["alone.bias"].shape[1]
        table = stacked.runs * units * _items(settled, stream)
    room = stream.start.numel() * units * (size + period)
    return size <= SLOTS and size + period <= WIDTH and max(table, room) <= ROOM


def _answered(stacked: Stacked, settled: Stack | None, noted: set[str]) -> bool:
    """Whether programs can answer what the policies ask, and what is to be noted."""
    asked = set(stacked.asks)
    if not asked <= {"residual", "embedding"} or not noted <= asked & {"residual"}:
        return False
    if not asked:
        return True
    if settled is None or not isinstance(settled.template, NCF):
        return False
    model = settled.template
    linear = isinstance(model, DotProduct) and isinstance(model.loss, SquaredError)
    return "residual" not in asked or (linear and not model.has_times)


def _way(stream: Stream, base: Tensor, refreshes: Sequence[Refresh]) -> Way:
    table = torch.tensor(refreshes, device=base.device)  # [refreshes, 3]
    length = stream.length.flatten()
    due = torch.searchsorted(table[:, 0].contiguous(), length, right=True)
    columns = stream.columns
    return Way(
        stream.start.flatten(),
        length,
        stream.warmup.flatten(),
        base.flatten(),
        due,
        table,
        columns.item,
        columns.rating,
        columns.time,
    )


def _set_layers(stacked: Stacked, settled: Stack | None, stream: Stream) -> SetLayers:
    """The network as it decides; what an item adds does not depend on the sketch."""
    state = stacked.state
    weight, direct = state["first.weight"], state["direct"][..., 0]
    vectors = torch.zeros(stacked.runs, _items(settled, stream), 0, device=weight.device)
    if settled is not None and "embedding" in stacked.asks:
        vectors = _of_items(settled, lambda model, items: model.embedding(items))
    scale = [state["center"].double(), state["spread"].double(), exact.parameter(state["slope"])]
    return SetLayers(
        scale=torch.stack(scale, 1),
        table=exact.linear(vectors, weight[..., OWN:], state["first.bias"][:, None]),
        straight=exact.matmul(vectors, direct[:, OWN:, None])[..., 0],
        own=exact.parameter(weight[..., :OWN].mT),
        direct=exact.parameter(direct[:, :OWN]),
        alone=exact.parameter(state["alone.weight"].mT),
        others=exact.parameter(state["others.weight"].mT),
        bias=exact.parameter(state["alone.bias"]) + exact.parameter(state["others.bias"]),
        last=exact.parameter(state["last"][..., 0]),
        logs=_logs(stream.longest, weight.device),
    )


def _item_layers(stacked: Stacked) -> ItemLayers:
    state = {name: exact.parameter(value) for name, value in stacked.state.items()}
    return ItemLayers(
        state["enter"],
        state["enter_bias"],
        state["middle.weight"].mT,
        state["middle.bias"],
        state["leave"],
        state["leave_bias"][..., 0],
    )


def _reader(settled: Stack, size: int) -> Reader:
    """The dot product as it reads full sketches of this size."""
    template, state = settled.template, settled.state
    full = torch.full((settled.runs, 1), size, device=state["user_prior"].device)
    rate = settled.call(lambda model, slots: model.rate(Evidence(slots, slots, slots, slots)), full)
    pull = torch.full_like(rate[:, 0], 2 * template.inner_pull)
    return Reader(
        _of_items(settled, lambda model, items: model.rows(items)),
        _of_items(settled, lambda model, items: model.intercept(items)),
        state["user_prior"],
        torch.stack([state["loading"], rate[:, 0], pull], 1),
        template.inner_steps,
        bool(template.inner_pull),
    )


def _of_items(settled: Stack, function: Callable[[Any, Tensor], Tensor]) -> Tensor:
    """[runs, items, ...] a function of a recommender and all its items."""
    every = torch.arange(settled.template.items, device=settled.state["user_prior"].device)
    result: Tensor = settled.call(function, every.expand(settled.runs, -1))
    return result


def _items(settled: Stack | None, stream: Stream) -> int:
    """How many items there are to look up."""
    if settled is not None:
        return settled.template.items
    return int(stream.columns.item.max()) + 1


def _logs(longest: int, device: torch.device) -> Tensor:
    """The logarithm of every age and number of repeats, as the network's first layer sees it."""
    whole = torch.arange(longest + 1, device=device).double()
    return exact.rounded(whole.log1p(), exact.STATE_BITS, exact.STATE_LIMIT)


def _look_up(sketch: Sketch, stream: Stream) -> None:
    """Fill in what is known of the remembered positions."""
    columns, there = stream.columns, sketch.present
    event = torch.where(there, stream.start.flatten()[:, None] + sketch.position, 0)
    for name in ("item", "rating", "time", "side"):
        column: Tensor = getattr(columns, name)
        getattr(sketch, name).copy_(torch.where(there, column[event], 0))
