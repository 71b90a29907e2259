"""Launch compiled loops on the CPU (`walk_loops`, `set_loops`, ...); needs numba.

As many threads as torch uses share the rows. What is sorted by length is shared evenly.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from dips.kernels.triton_launch import (
    Arrivals,
    Glance,
    ItemLayers,
    Kept,
    Listener,
    Memory,
    Question,
    Reader,
    SetLayers,
    SetNet,
    Way,
)

FEW = 512
"""So many rows of scores are not worth a second thread."""

TABLED = 1 << 16
"""Of so many items a keeper has a table: 8 bytes for each unit of the network."""


@cache
def installed(compiler: str) -> bool:
    """Whether there is this package; what needs it is imported later."""
    return find_spec(compiler) is not None


def walk_set(
    way: Way, memory: Memory, layers: SetLayers, teller: Reader | Listener | None, period: int
) -> None:
    """Walk under a network over sets, at most `period` new at once, told residuals or predicted_scores."""
    from dips.kernels.numba_rollout import set_walk

    width = memory.position.shape[1] + period
    arrays = map(_arrays, (way, _noted(memory), _dense(layers), *_tellers(teller)))
    share(set_walk, [*arrays, width], len(memory.position))


def walk_items(way: Way, memory: Memory, layers: ItemLayers, period: int) -> None:
    """Walk under a network from ratings to a score for each item."""
    from dips.kernels.numba_rollout import item_walk

    width = memory.position.shape[1] + period
    arrays = map(_arrays, (way, _noted(memory), _dense(layers)))
    share(item_walk, [*arrays, width], len(memory.position))


def walk_hardest(way: Way, memory: Memory, reader: Reader, period: int) -> None:
    """Walk under the rule that keeps what is predicted worst."""
    from dips.kernels.numba_rules import hardest_walk

    width = memory.position.shape[1] + period
    arrays = map(_arrays, (way, _noted(memory), _dense(reader)))
    share(hardest_walk, [*arrays, width], len(memory.position))


def walk_influence(way: Way, memory: Memory, reader: Reader, damping: float, period: int) -> None:
    """Walk under the rule that adds what would lower the loss of all most, one by one."""
    from dips.kernels.numba_rules import influence_walk

    width = memory.position.shape[1] + period
    arrays = map(_arrays, (way, _noted(memory), _dense(reader)))
    share(influence_walk, [*arrays, damping, width], len(memory.position))


def set_scores(question: Question, net: SetNet) -> Tensor:
    """[rows, candidates] scores of a network over sets."""
    from dips.kernels import numba_set_network

    scores = torch.empty(question.position.shape, dtype=torch.float64)
    arrays = map(_arrays, (_dense(question), _dense(net)))
    share(numba_set_network.set_scores, [*arrays, scores.numpy()], len(scores), FEW)
    return scores


def keeper(
    net: SetNet, vectors: Tensor, teller: Reader | Listener | None
) -> Callable[[Kept, Arrivals, Tensor], None]:
    """What takes arrivals, in their order, into the sketches of their users.

    What an item adds to the network, by its vector [items, dim], is known before it comes, for the
    first `TABLED` of them.
    """
    from dips.kernels import numba_keeper

    table = vectors.contiguous().numpy()
    tables = [_arrays(_dense(net)), table, *map(_arrays, _tellers(teller))]
    shares = numba_keeper.shares_of(tables[0], table[:TABLED])

    def keep(kept: Kept, arrivals: Arrivals, number: Tensor) -> None:
        arrays = _arrays(kept), _arrays(_dense(arrivals)), number.numpy()
        numba_keeper.keep(*arrays, *tables, shares)

    return keep


def keep_newest(kept: Kept, arrivals: Arrivals, key: Tensor, newest: int) -> None:
    """The same where the newest stay, and a sample of what is older; lots follow from the keys."""
    from dips.kernels import numba_keeper

    loop: Callable[..., None] = numba_keeper.keep_newest
    loop(_arrays(kept), _arrays(_dense(arrivals)), key.numpy(), newest)


def residuals(glance: Glance, reader: Reader) -> Tensor:
    """[rows, n] twice how far ratings lie above the predictions from these sketches."""
    from dips.kernels import numba_adaptation

    found = torch.empty(glance.item.shape, dtype=torch.float64)
    arrays = map(_arrays, (_dense(glance), _dense(reader)))
    share(numba_adaptation.residuals, [*arrays, found.numpy()], len(found), FEW)
    return found


def share(loop: Callable[..., None], arguments: list[Any], rows: int, few: int = 1) -> None:
    """Every n-th row to each of n threads: loops do not hold Python's lock."""
    threads = max(1, min(torch.get_num_threads(), rows // few))
    if threads == 1:
        loop(*arguments, 0, 1)
        return
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(loop, *arguments, first, threads) for first in range(threads)]:
            done.result()


def _arrays(fields: tuple[Any, ...]) -> Any:
    """The same, a named tuple, as arrays of numpy, which share the memory."""
    return type(fields)(*(f.numpy() if isinstance(f, Tensor) else f for f in fields))


def _dense(fields: tuple[Any, ...]) -> Any:
    """The same without gaps: loops over rows are quick, and there is one program for all."""
    return type(fields)(*(f.contiguous() if isinstance(f, Tensor) else f for f in fields))


def _noted(memory: Memory) -> Memory:
    """What is not noted has no entries: so there is one program for all that may be noted."""
    whole, real = torch.zeros(0, 0, dtype=torch.int64), torch.zeros(0, 0)
    return memory._replace(
        kept_repeats=whole if memory.kept_repeats is None else memory.kept_repeats,
        told=real if memory.told is None else memory.told,
        kept_scores=real if memory.kept_scores is None else memory.kept_scores,
        scores=real if memory.scores is None else memory.scores,
    )


def _tellers(teller: Reader | Listener | None) -> tuple[Reader, Listener]:
    """Who tells, and for the other one tables without entries: so there is one program for all."""
    nothing = torch.zeros(0, 0, dtype=torch.float64)
    reader = Reader(nothing[None], nothing, nothing, nothing, 0, False)
    cube, none = nothing[None], torch.zeros(0, dtype=torch.float64)
    listener = Listener(cube, nothing, cube, cube, none, nothing, nothing, 0)
    if isinstance(teller, Reader):
        return _dense(teller), listener
    return reader, listener if teller is None else _dense(teller)
