"""Call the numba loops with tensors, on as many threads as torch uses.

Only `dispatch` calls this file. numba is imported at the first call.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dips.kernels import layout
from dips.kernels.layout import (
    EventArrays,
    ResidualInputs,
    RolloutInputs,
    RolloutState,
    Scorer,
    SetNetworkInputs,
    SetNetworkLayers,
    SketchArrays,
    SquaredErrorModel,
)

ROWS_PER_THREAD = 512
"""Fewer rows of scores than this are not divided between threads."""


def roll_out(inputs: RolloutInputs, state: RolloutState, scorer: Scorer) -> None:
    """Roll out all users; change and fill `state` in place."""
    from dips.kernels import numba_decisions

    size = state.position.shape[1]
    width = size + int(inputs.refreshes[:, 1].max())
    event = (inputs.start[:, None] + state.position.clamp_min(0)).clamp_max(len(inputs.item) - 1)
    none = torch.zeros(0, dtype=torch.int64)
    sketch = SketchArrays(
        state.position, inputs.item[event], inputs.rating[event], inputs.time[event],
        state.repeats, none.view(0, 0),
    )  # fmt: skip
    events = EventArrays(inputs.item, inputs.rating, inputs.time, none)
    made = arrays(scorer)
    arguments = [*map(arrays, (inputs, events, sketch, _recorded(state))), made, none.numpy()]
    workspace = partial(numba_decisions.workspace_for, made, size, width)
    share(numba_decisions.roll_out, arguments, len(state.position), workspace=workspace)


def keeper(
    scorer: Scorer,
) -> Callable[[SketchArrays, Tensor, Tensor, EventArrays, Tensor, Tensor], None]:
    """Return a function that refreshes sketches after each arrival; see `dispatch.keeper`."""
    from dips.kernels import numba_decisions

    made, has_tables = arrays(scorer), scorer.code < layout.LAST
    none = torch.zeros(0, dtype=torch.int64)

    def observe(
        sketch: SketchArrays, seen: Tensor, user: Tensor, events: EventArrays, key: Tensor,
        number: Tensor,
    ) -> None:  # fmt: skip
        size = sketch.position.shape[1]
        numba_decisions.observe(
            arrays(sketch), seen.numpy(), user.numpy(), arrays(events), key.numpy(),
            (number if has_tables else none).numpy(), made,
            numba_decisions.workspace_for(made, size, size + 1),
        )  # fmt: skip

    return observe


def set_network_scores(inputs: SetNetworkInputs, layers: SetNetworkLayers) -> Tensor:
    """Return the scores of set networks [rows, candidates], float64."""
    from dips.kernels import numba_decisions

    scores = torch.empty(inputs.position.shape, dtype=torch.float64)
    arguments = [arrays(inputs), arrays(layers), scores.numpy()]
    width, hidden, dim = scores.shape[1], layers.bias.shape[1], inputs.embedding.shape[2]
    workspace = partial(numba_decisions.workspace, width, hidden, dim, 0, 0, 0)
    share(numba_decisions.set_network_scores, arguments, len(scores), ROWS_PER_THREAD, workspace)
    return scores


def residuals(inputs: ResidualInputs, model: SquaredErrorModel) -> Tensor:
    """Return 2 (rating - prediction) [rows, n], float64."""
    from dips.kernels import numba_inner_loop

    found = torch.empty(inputs.item.shape, dtype=torch.float64)
    arguments = [arrays(inputs), arrays(model), found.numpy()]
    size, dim = inputs.sketch_item.shape[1], model.prior.shape[1]
    workspace = partial(numba_inner_loop.inner_workspace, size, dim)
    share(numba_inner_loop.residuals, arguments, len(found), ROWS_PER_THREAD, workspace)
    return found


def share(
    loop: Callable[..., None],
    arguments: list[Any],
    rows: int,
    few: int = 1,
    workspace: Callable[[], Any] | None = None,
) -> None:
    """Run a loop on every n-th row in each of n threads; loops release Python's lock.

    Args:
        loop: Called with the arguments, the buffers, the first row and the number of threads.
        arguments: Arguments of all threads.
        rows: Number of rows.
        few: Fewer rows than this are not divided.
        workspace: Returns new buffers for a thread; None: the loop makes its own.
    """
    threads = max(1, min(torch.get_num_threads(), rows // few))

    def run(first: int) -> None:
        buffers = () if workspace is None else (workspace(),)
        loop(*arguments, *buffers, first, threads)

    if threads == 1:
        run(0)
        return
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(run, first) for first in range(threads)]:
            done.result()


def arrays(value: Any) -> Any:
    """Return a (nested) named tuple with contiguous numpy arrays in the place of tensors.

    Contiguous tensors share their memory. All arrays have one layout, so a loop compiles once.
    """
    if isinstance(value, Tensor):
        return value.contiguous().numpy()
    return type(value)(*map(arrays, value)) if isinstance(value, tuple) else value


def _recorded(state: RolloutState) -> RolloutState:
    """Return the state with empty tensors for what is not recorded."""
    none = torch.zeros(0, 0)
    return RolloutState(*(none if field is None else field for field in state))
