"""The single state transition of the system: sketch + new interactions -> sketch (Eq. 3).

Training, backfill and the service all call `refresh`. Knows nothing of gradients, files or models.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dips.sketch.records import Candidates, Sketch
from dips.sketch.selection import Greedy, Selector

Score = Callable[[Sketch, Candidates], Tensor]


def join(sketch: Sketch, arrivals: Sketch, seen: Tensor, key: Tensor) -> Candidates:
    """The candidates of a refresh: what was kept, then what came since, oldest first."""
    same = (arrivals.item[:, :, None] == sketch.item[:, None, :]) & sketch.present[:, None, :]
    before = torch.where(same, sketch.repeats[:, None, :], 0).amax(2)
    twins = arrivals.item[:, :, None] == arrivals.item[:, None, :]
    twins = twins & arrivals.present[:, None, :]
    repeats = before + twins.tril().sum(2)
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
    """The new sketches, and the scores [users, size] that the kept interactions had.

    The size stays as it is unless another is given.
    """
    candidates = join(sketch, arrivals, seen, key)
    scores = score(sketch, candidates)
    slots = selector.choose(scores, candidates, size or sketch.position.shape[1])
    return candidates.entries.take(slots), scores.gather(1, slots)


def fill(sketch: Sketch, arrivals: Sketch, seen: Tensor, key: Tensor, size: int) -> Sketch:
    """Keep everything where everything fits into `size` slots: nothing is scored."""
    candidates = join(sketch, arrivals, seen, key)
    alike = torch.zeros_like(candidates.position, dtype=torch.float64)
    return candidates.entries.take(Greedy().choose(alike, candidates, size))


def refresh(
    sketch: Sketch, arrivals: Sketch, seen: Tensor, key: Tensor, score: Score, selector: Selector
) -> Sketch:
    """Choose anew which interactions each user keeps; the size stays as it is.

    `seen` [users] counts the interactions up to the newest arrival. Where everything fits,
    everything is kept.
    """
    return decide(sketch, arrivals, seen, key, score, selector)[0]
