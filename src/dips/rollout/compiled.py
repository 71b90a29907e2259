"""The short way through a walk: one launch for all users and refreshes, where that is possible.

It is for `Greedy` choices of the two networks without side information, and of the rules `hardest`
and `influence` without half-lives, `influence` while there are no more candidates than entries in
an item's vector; who is asked is the dot product, by `learned` with a predicted_score where a softmax is over
all items, else with squared error. Programs are Triton's on CUDA and numba's on the CPU. The result
is the same to the bit; everything else, and machines without them, walk refresh by refresh
(`dips.rollout.rollout`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dips.kernels import numba_launch, triton_launch
from dips.kernels.numba_launch import installed
from dips.kernels.triton_launch import ItemLayers, Memory, SetLayers, Way
from dips.numerics import exact
from dips.policy.base import Policy, signals_of
from dips.policy.hardest import Hardest
from dips.policy.influence import Influence
from dips.policy.network import PaperNetwork
from dips.policy.set_network import SetNetwork, grid_layers
from dips.policy.stacked import StackedPolicies
from dips.recommender.kernel_inputs import is_answered, is_linear, reader_of, teller_of, vectors_of
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.trace import RecordedInputs
from dips.sketch.records import Sketch
from dips.sketch.selection import Greedy, Selector
from dips.stream.users import Stream

COMPILERS = {"cuda": "triton", "cpu": "numba"}
"""What programs are written for, by device; Triton's interpreter, for tests, runs on the CPU."""
WALKING = {"triton": triton_launch, "numba": numba_launch}
"""Who launches them."""
HOLDS = {"triton": (64, 128, 128), "numba": (1 << 16, 1 << 16, 1 << 16)}
"""What a program can hold: the largest sketch, the most candidates, for a predicted_score the widest vector.
"""
ROOM = 1 << 28
"""The most numbers in a network's table of items, and in the room that programs write to."""

Refresh = tuple[int, int, int]
"""Interactions seen, how many of them are new, predictions that follow."""
Launch = Callable[[Any, Way, Memory], None]
"""Walk with the programs of a module; items of the way are numbered as in `Columns.met`."""


@torch.no_grad()
def advance(
    policy: Policy,
    asked: StackedRecommenders | None,
    selector: Selector,
    stream: Stream,
    base: Tensor,
    refreshes: Sequence[Refresh],
    sketch: Sketch,
    kept: Tensor,
    repeats: Tensor,
    worth: tuple[Tensor, Tensor] | None,
    notes: RecordedInputs | None,
) -> bool:
    """Take all users through these refreshes and note what there is to note; False: not possible.

    `asked` are the recommenders, where the policy asks. Of their tables a walk knows only the items
    that its events name, so that a large catalogue costs nothing, or for a predicted_score one look at it.
    """
    compiler = COMPILERS.get(kept.device.type, "")
    if not (refreshes and compiler and installed(compiler) and isinstance(selector, Greedy)):
        return False
    size, period = kept.shape[1], max(new for _, new, _ in refreshes)
    answers = {} if notes is None else notes.answers
    largest, most, widest = HOLDS[compiler]
    if size > largest or size + period > most:
        return False
    if (
        asked
        and "predicted_score" in signals_of(policy)
        and len(asked.template.user_prior) > widest
    ):
        return False
    launch = _launch(policy, asked, stream, size, period, set(answers))
    if launch is None:
        return False
    memory = Memory(
        sketch.position,
        sketch.repeats,
        kept,
        repeats,
        answers.get("predicted_score", answers.get("residual")),
        *(worth or (None, None)),
    )
    with torch.cuda.device_of(kept):  # type: ignore[no-untyped-call]
        launch(WALKING[compiler], _way(stream, base, refreshes), memory)
    _look_up(sketch, stream)
    return True


def _launch(
    policy: Policy,
    asked: StackedRecommenders | None,
    stream: Stream,
    size: int,
    period: int,
    noted: set[str],
) -> Launch | None:
    """How to walk under a policy, at most `period` new at once; None: there is no program."""
    if isinstance(policy, Hardest | Influence):
        return _rule(policy, asked, stream, size, period, noted)
    stacked = _stacked(policy, stream)
    if (
        stacked is None
        or not _answered(stacked, asked, noted)
        or not _fits(stacked, size, period, stream)
    ):
        return None
    if isinstance(stacked.template, SetNetwork):
        quantized = None if asked is None else _settled(asked, stream)
        teller, met = None, stream.columns.met[0]
        if asked is not None and quantized is not None:
            teller = teller_of(stacked.required_signals, asked, quantized, met, size)
        layers = _set_layers(stacked, quantized, stream)
        return lambda by, way, memory: by.walk_set(way, memory, layers, teller, period)
    items = _item_layers(stacked, stream)
    return lambda by, way, memory: by.walk_items(way, memory, items, period)


def _rule(
    policy: Hardest | Influence, asked: StackedRecommenders | None, stream: Stream, size: int, period: int,
    noted: set[str],
) -> Launch | None:  # fmt: skip
    """The same for a rule that asks."""
    if asked is None or not is_linear(asked.template) or asked.runs != stream.runs:
        return None
    if noted or policy.half_life is not None:
        return None
    if isinstance(policy, Hardest):
        reader = reader_of(_settled(asked, stream), size)
        return lambda by, way, memory: by.walk_hardest(way, memory, reader, period)
    if policy.size != size or size + period > asked.state["vectors"].shape[2]:
        return None
    reader, damping = reader_of(_settled(asked, stream), size), policy.damping
    return lambda by, way, memory: by.walk_influence(way, memory, reader, damping, period)


def _stacked(policy: Policy, stream: Stream) -> StackedPolicies | None:
    """The policies of all runs, if there are programs for them."""
    network = policy.template if isinstance(policy, StackedPolicies) else policy
    if isinstance(network, SetNetwork):
        known = network.side.width == 0
    elif isinstance(network, PaperNetwork):
        known = not network.blocks and not (network.training and network.dropout)
    else:
        return None
    if not known:
        return None
    if isinstance(policy, StackedPolicies):
        return policy if policy.runs == stream.runs else None
    return StackedPolicies.of([network] * stream.runs, stream.start.device)


def _settled(asked: StackedRecommenders, stream: Stream) -> StackedRecommenders:
    """The recommenders as decisions see them, with tables of what the events name."""
    return asked.among(stream.columns.met[0]).quantized()


def _fits(stacked: StackedPolicies, size: int, period: int, stream: Stream) -> bool:
    """Whether tables and the room to write to are small enough."""
    second = "middle" if isinstance(stacked.template, PaperNetwork) else "alone"
    units = stacked.state[f"{second}.bias"].shape[1]
    table = stacked.runs * units * len(stream.columns.met[0])
    room = stream.start.numel() * units * (size + period)
    return max(table, room) <= ROOM


def _answered(stacked: StackedPolicies, asked: StackedRecommenders | None, noted: set[str]) -> bool:
    """Whether programs can answer what the policies ask, and what is to be noted."""
    if not noted <= set(stacked.required_signals) & {"residual", "predicted_score"}:
        return False
    return not stacked.required_signals or (
        asked is not None and is_answered(stacked.required_signals, asked.template)
    )


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
        columns.met[1],
        columns.rating,
        columns.time,
    )


def _set_layers(
    stacked: StackedPolicies, quantized: StackedRecommenders | None, stream: Stream
) -> SetLayers:
    """The network as it decides; what an item adds does not depend on the sketch."""
    net = grid_layers(stacked.state, stream.longest)
    vectors = net.bias.new_zeros(stacked.runs, len(stream.columns.met[0]), 0)
    if quantized is not None and "embedding" in stacked.required_signals:
        vectors = vectors_of(quantized)
    share = exact.rounded(vectors, exact.STATE_BITS, exact.STATE_LIMIT)
    same = {name: value for name, value in net._asdict().items() if name in SetLayers._fields}
    table = share @ net.enter + net.enter_bias[:, None]
    straight = (share @ net.straight[..., None])[..., 0]
    return SetLayers(**same | {"table": table, "straight": straight})


def _item_layers(stacked: StackedPolicies, stream: Stream) -> ItemLayers:
    items = stream.columns.met[0]
    by_item = {name: stacked.state[name][:, items] for name in ("enter", "leave", "leave_bias")}
    state = {name: exact.parameter(value) for name, value in (stacked.state | by_item).items()}
    return ItemLayers(
        state["enter"],
        state["enter_bias"],
        state["middle.weight"].mT,
        state["middle.bias"],
        state["leave"],
        state["leave_bias"][..., 0],
    )


def _look_up(sketch: Sketch, stream: Stream) -> None:
    """Fill in what is known of the remembered positions."""
    columns, there = stream.columns, sketch.present
    event = torch.where(there, stream.start.flatten()[:, None] + sketch.position, 0)
    for name in ("item", "rating", "time", "side"):
        column: Tensor = getattr(columns, name)
        getattr(sketch, name).copy_(torch.where(there, column[event], 0))
