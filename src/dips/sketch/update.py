"""The single state transition of the system: sketch + new interactions -> sketch (Eq. 3).

`decide` is the reference of rollouts, `dips sketch` and the keeper. `kernels/numba_decisions.py`
computes the same bits. Knows nothing about gradients, files or models.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dips.sketch.records import Candidates, Sketch
from dips.sketch.selection import Greedy, Selector

Score = Callable[[Sketch, Candidates], Tensor]
"""Returns scores [users, candidates] from the old sketch and the candidates."""


def join(sketch: Sketch, arrivals: Sketch, seen: Tensor, key: Tensor) -> Candidates:
    """Return the candidates of a refresh: the sketch, then the new interactions, oldest first.

    Args:
        sketch: The kept interactions, [users, size].
        arrivals: The interactions since the last refresh, [users, period].
        seen: Number of interactions of each user, up to the newest arrival, [users].
        key: Key of each user's random numbers, [users].

    Returns:
        The candidates; repeat counts of arrivals continue those of their items in the sketch.
    """
    same = (arrivals.item[:, :, None] == sketch.item[:, None, :]) & sketch.present[:, None, :]
    before = torch.where(same, sketch.repeats[:, None, :], 0).amax(2)
    duplicates = arrivals.item[:, :, None] == arrivals.item[:, None, :]
    duplicates = duplicates & arrivals.present[:, None, :]
    repeats = before + duplicates.tril().sum(2)
    arrivals = arrivals._replace(repeats=torch.where(arrivals.present, repeats, 0))
    entries = [torch.cat(pair, 1) for pair in zip(sketch, arrivals, strict=True)]
    return Candidates._make([*entries, seen, key])


def decide(
    sketch: Sketch,
    arrivals: Sketch,
    seen: Tensor,
    key: Tensor,
    score: Score,
    selector: Selector,
    size: int | None = None,
) -> tuple[Sketch, Tensor]:
    """Score all candidates and select those that stay. Where all candidates fit, all are kept.

    Args:
        sketch: The kept interactions, [users, size].
        arrivals: The interactions since the last refresh, [users, period].
        seen: Number of interactions of each user, up to the newest arrival, [users].
        key: Key of each user's random numbers, [users].
        score: Returns the scores of the candidates.
        selector: Selects from the scores.
        size: Size of the new sketch; None: as before.

    Returns:
        The new sketches, and the scores of their interactions, [users, size].
    """
    candidates = join(sketch, arrivals, seen, key)
    scores = score(sketch, candidates)
    slots = selector.choose(scores, candidates, size or sketch.position.shape[1])
    return candidates.entries.take(slots), scores.gather(1, slots)


def fill(sketch: Sketch, arrivals: Sketch, seen: Tensor, key: Tensor, size: int) -> Sketch:
    """Return sketches of this size that keep all candidates, which must fit: nothing is scored.

    Args:
        sketch: The kept interactions, [users, any].
        arrivals: The new interactions, [users, period].
        seen: Number of interactions of each user, up to the newest arrival, [users].
        key: Key of each user's random numbers, [users].
        size: Size of the new sketch.
    """
    candidates = join(sketch, arrivals, seen, key)
    equal = torch.zeros_like(candidates.position, dtype=torch.float64)
    return candidates.entries.take(Greedy().choose(equal, candidates, size))
