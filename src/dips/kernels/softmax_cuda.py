"""The inner loop over all items on a GPU: one launch there, two back, no logits stored.

The same as `softmax_descent` to what float32 products of rounded numbers (tf32) allow; the programs
are in `softmax_kernels`. Every function here takes tensors of one run; `vmap` over runs is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dips.numerics.softmax_descent import AllItems, InnerProblem

DEVICES = {"cuda"}
"""Where there are programs; tests add the CPU, for Triton's interpreter."""
TRITON = find_spec("triton") is not None
PRECISION = "tf32"
"""How products of matrices are rounded: tf32, tf32x3 or ieee."""
DIM = 128
"""The longest vectors that a program can hold."""
ROWS, TILE, WARPS, STAGES = 16, 256, 4, 3
"""Rows that a program takes, items at a time (half of them where they have own entries), its warps,
and how many tiles are on their way."""
PROGRAMS, FEW = 528, 256
"""Rows are shared among programs until there are so many, and no further than so few rows each."""


def fits(table: Tensor) -> bool:
    """Whether there are programs for these vectors of items."""
    here = table.device.type in DEVICES and TRITON
    return here and table.dtype == torch.float32 and table.shape[-1] <= DIM


class Course(NamedTuple):
    """What a descent leaves behind for its way back."""

    users: Tensor  # [steps + 1, rows, width]
    means: Tensor  # [steps, rows, dim] of the items' vectors
    norms: Tensor  # [steps, rows] logarithm of the sum over items


class Return(NamedTuple):
    """What the way back leaves behind."""

    slopes: Tensor  # [steps + 1, rows, width] gradients in the users' vectors
    centres: Tensor  # [steps, rows]
    withins: Tensor  # [steps, rows] the part of own entries, before their loading


def course(items: AllItems, problem: InnerProblem, steps: int) -> Course:
    """All steps of `softmax_descent.descend_softmax`."""
    lift = problem.rate[:, None] * problem.feature_sum + problem.penalty_rate * problem.start
    stay = (1 - problem.penalty_rate)[:, 0]
    return Course(*_course(*items, lift, problem.step[:, 0], stay, problem.start, steps))


def way_back(items: AllItems, problem: InnerProblem, gone: Course, along: Tensor) -> Return:
    """From the gradient [rows, width] in the last vectors to that in the first."""
    stay = (1 - problem.penalty_rate)[:, 0]
    return Return(*_way_back(*items, problem.step[:, 0], stay, *gone, along))


def moments(items: AllItems, user: Tensor) -> tuple[Tensor, Tensor]:
    """[rows] the logarithm of the sum over items of exp(logits), [rows, dim] their mean vector."""
    nothing = torch.zeros_like(user[:, 0])
    _, means, norms = _course(*items, torch.zeros_like(user), nothing, nothing, user, 1)
    return norms[0], means[0]


class Descent(torch.autograd.Function):
    """`softmax_descent.SoftmaxDescent` by these programs."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:
        """Vectors [rows, width] after the last step; then the course."""
        gone = course(AllItems(*given[:3]), InnerProblem(*given[3:8]), given[8])
        return gone.users[-1].clone(), *gone

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep all of it."""
        *tensors, ctx.pull, _ = inputs
        ctx.save_for_backward(*tensors, *output[1:])
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients in everything that was given, but the rate."""
        table, bias, loading, pulled, weight, start, rate, *known = ctx.saved_tensors
        items, gone = AllItems(table, bias, loading), Course(*known)
        problem = InnerProblem(pulled, weight, start, rate, ctx.pull)
        back = way_back(items, problem, gone, gradients[0])
        step = problem.step[:, 0]
        to_table, to_bias, to_loading = _gather(
            *items, step, gone.users, gone.norms, back.slopes, back.centres
        )
        if loading is not None:
            to_loading = to_loading.sum() + (back.withins * step).sum()
        total = back.slopes[1:].sum(0)
        to_setting = (
            rate[:, None] * total,
            -rate * back.centres.sum(0),
            back.slopes[0] + problem.penalty_rate * total,
        )
        rest = None if loading is None else to_loading
        return to_table, to_bias, rest, *to_setting, None, None, None


class LogSum(torch.autograd.Function):
    """[rows] the logarithm of the sum over items of exp(logits), where no item has own entries."""

    generate_vmap_rule = True

    @staticmethod
    def forward(table: Tensor, bias: Tensor, user: Tensor) -> tuple[Tensor, Tensor]:
        """It, and the items' mean vector."""
        return moments(AllItems(table, bias, None), user)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep all of it."""
        ctx.save_for_backward(*inputs, *output)
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        """Gradients in items and users."""
        table, bias, user, norm, mean = ctx.saved_tensors
        items = AllItems(table, bias, None)
        given = gradients[0]
        to_table, to_bias, _ = _gather(*items, given, user[None], norm[None], None, None)
        return to_table, to_bias, given[:, None] * mean


def _launch_course(
    table: Tensor, bias: Tensor, loading: Tensor | None, lift: Tensor, step: Tensor, stay: Tensor,
    start: Tensor, steps: int,
) -> list[Tensor]:  # fmt: skip
    """With a leading axis of runs; it comes second in what is returned, after the steps."""
    from dips.kernels import triton_softmax

    runs, rows, width = start.shape
    users = start.new_empty(steps + 1, runs, rows, width)
    users[0] = start
    means = start.new_empty(steps, runs, rows, table.shape[2])
    norms = start.new_empty(steps, runs, rows)
    triton_softmax.descend[_grid(rows, runs)](
        table, bias, loading, lift, step, stay, users, means, norms, rows, runs,
        STEPS=steps, **_shape(table, loading, width),
    )  # fmt: skip
    return [users, means, norms]


def _launch_way_back(
    table: Tensor, bias: Tensor, loading: Tensor | None, step: Tensor, stay: Tensor, users: Tensor,
    means: Tensor, norms: Tensor, along: Tensor,
) -> list[Tensor]:  # fmt: skip
    from dips.kernels import triton_softmax

    layers, runs, rows, width = users.shape
    slopes = torch.empty_like(users)
    slopes[-1] = along
    centres, withins = torch.empty_like(norms), torch.zeros_like(norms)
    triton_softmax.ascend[_grid(rows, runs)](
        table, bias, loading, step, stay, users, means, norms, slopes, centres, withins, rows, runs,
        STEPS=layers - 1, **_shape(table, loading, width),
    )  # fmt: skip
    return [slopes, centres, withins]


def _launch_gather(
    table: Tensor, bias: Tensor, loading: Tensor | None, step: Tensor, users: Tensor, norms: Tensor,
    slopes: Tensor | None, centres: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    from dips.kernels import triton_softmax

    steps, runs, rows = norms.shape
    items, tile = table.shape[1], 64
    tiles = -(-items // tile)
    parts = max(1, min(PROGRAMS // (tiles * runs), steps * rows // FEW))
    share = -(-steps * rows // parts)
    to_table = table.new_empty(parts, *table.shape)
    to_bias = table.new_empty(parts, *bias.shape)
    to_loading = table.new_empty(parts, *bias.shape) if loading is not None else to_bias
    shape = _shape(table, loading, users.shape[-1]) | {"R": 64, "N": tile}
    triton_softmax.gather[(tiles, parts, runs)](
        table, bias, loading, step, users, norms, slopes, centres, to_table, to_bias, to_loading,
        rows, runs, share, STEPS=steps, CURVED=slopes is not None, **shape,
    )  # fmt: skip
    return [value.sum(0) for value in (to_table, to_bias, to_loading)]


def _grid(rows: int, runs: int) -> tuple[int, int]:
    return -(-rows // ROWS), runs


def _shape(table: Tensor, loading: Tensor | None, width: int) -> dict[str, Any]:
    dim = table.shape[2]
    power = max(16, 1 << (dim - 1).bit_length())
    return {
        "DIM": dim, "ITEMS": table.shape[1], "WIDTH": width, "OWN": loading is not None,
        "D": power, "R": ROWS, "N": TILE // (2 if loading is not None else 1),
        "PRECISION": PRECISION, "num_warps": WARPS, "num_stages": STAGES,
    }  # fmt: skip


Launch = Callable[..., list[Tensor]]


def _operation(
    name: str, schema: str, launch: Launch, given: Sequence[int] = (), found: Sequence[int] = ()
) -> Launch:
    """An operation on tensors of one run, and its rule for several.

    Of those `given` and `found`, by place, the first axis is that of the steps: runs come second.
    """

    def axis_in(number: int) -> int:
        return int(number in given)

    def axis_out(number: int) -> int:
        return int(number in found)

    def alone(*arguments: Any) -> list[Tensor]:
        wide = [
            value.unsqueeze(axis_in(number)).contiguous() if isinstance(value, Tensor) else value
            for number, value in enumerate(arguments)
        ]
        return [value.squeeze(axis_out(at)) for at, value in enumerate(launch(*wide))]

    def several(
        info: Any, in_dims: Sequence[Any], *arguments: Any
    ) -> tuple[list[Tensor], list[int]]:
        def wide(number: int, value: Any, axis: int | None) -> Any:
            if not isinstance(value, Tensor):
                return value
            to = axis_in(number)
            if axis is None:
                shape = list(value.shape)
                shape.insert(to, info.batch_size)
                return value.unsqueeze(to).expand(shape).contiguous()
            return value.movedim(axis, to).contiguous()

        numbered = zip(range(len(arguments)), arguments, in_dims, strict=True)
        made = launch(*(wide(*each) for each in numbered))
        return made, [axis_out(at) for at in range(len(made))]

    operation = torch.library.custom_op(f"dips::{name}", alone, mutates_args=(), schema=schema)
    operation.register_vmap(several)
    return operation


_COMMON = "Tensor table, Tensor bias, Tensor? loading"
_course = _operation(
    "softmax_course",
    f"({_COMMON}, Tensor lift, Tensor step, Tensor stay, Tensor start, int steps) -> Tensor[]",
    _launch_course,
    found=(0, 1, 2),
)
_way_back = _operation(
    "softmax_way_back",
    f"({_COMMON}, Tensor step, Tensor stay, Tensor users, Tensor means, Tensor norms, "
    "Tensor along) -> Tensor[]",
    _launch_way_back,
    given=(5, 6, 7),
    found=(0, 1, 2),
)
_gather = _operation(
    "softmax_gather",
    f"({_COMMON}, Tensor step, Tensor users, Tensor norms, Tensor? slopes, Tensor? centres) "
    "-> Tensor[]",
    _launch_gather,
    given=(4, 5, 6, 7),
)
