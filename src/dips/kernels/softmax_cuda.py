"""Softmax over all items on CUDA: inner loop and adjoint by Triton programs (`triton_softmax`).

Only `dispatch` imports this file; it says when the programs are supported. No logits are stored:
one launch computes the inner loop, two compute its gradients. The results equal
`numerics.softmax_descent` up to the rounding of products in tf32. Functions take tensors of one run
and have rules for `vmap` over runs.

Time of the reference path on the same H200 / time of Triton, for the loss of 2,048 predictions over
5,000 items and all gradients: 2.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dips.numerics.softmax_descent import AllItems, InnerProblem

PRECISION = "tf32"
"""Rounding of matrix products: tf32, tf32x3 or ieee."""
ROWS, TILE, WARPS, STAGES = 16, 256, 4, 3
"""Rows of a program, items in a tile (half with the repeat feature), warps, pipeline stages."""
PROGRAMS, MIN_ROWS = 528, 256
"""Most programs that share the rows of a gradient, and fewest rows of each."""


class ForwardPass(NamedTuple):
    """Results of the inner loop that its adjoint needs; `width` is dim, or dim + items."""

    users: Tensor  # [steps + 1, rows, width] user vectors
    means: Tensor  # [steps, rows, dim] mean item vectors
    norms: Tensor  # [steps, rows] logarithm of the sum over items of exp(logit)


class BackwardPass(NamedTuple):
    """Results of the adjoint."""

    adjoints: Tensor  # [steps + 1, rows, width] gradients in the user vectors
    centres: Tensor  # [steps, rows] mean change of the logits along the adjoint
    repeat_parts: Tensor  # [steps, rows] part of the repeat entries in it, unscaled


def forward_pass(items: AllItems, problem: InnerProblem, steps: int) -> ForwardPass:
    """Compute all steps of `softmax_descent.descend_softmax` (Eq. 7).

    Args:
        items: All items of one run.
        problem: The sketches of one run.
        steps: Number of inner steps.
    """
    constant = problem.rate[:, None] * problem.feature_sum + problem.penalty_rate * problem.start
    decay = (1 - problem.penalty_rate)[:, 0]
    return ForwardPass(*_forward(*items, constant, problem.step[:, 0], decay, problem.start, steps))


def backward_pass(
    items: AllItems, problem: InnerProblem, forward: ForwardPass, adjoint: Tensor
) -> BackwardPass:
    """Compute the adjoint of `forward_pass`.

    Args:
        items: All items of one run.
        problem: The sketches of one run.
        forward: Results of the inner loop.
        adjoint: [rows, width] gradient in the last user vectors.
    """
    decay = (1 - problem.penalty_rate)[:, 0]
    return BackwardPass(*_backward(*items, problem.step[:, 0], decay, *forward, adjoint))


def moments(items: AllItems, user: Tensor) -> tuple[Tensor, Tensor]:
    """Return logarithms of the sums of exp(logits) [rows], and mean item vectors [rows, dim]."""
    zero = torch.zeros_like(user[:, 0])
    _, means, norms = _forward(*items, torch.zeros_like(user), zero, zero, user, 1)
    return norms[0], means[0]


class SoftmaxDescent(torch.autograd.Function):
    """`softmax_descent.SoftmaxDescent` by Triton programs."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:
        """Return user vectors [rows, width] after the last step, then the `ForwardPass`."""
        forward = forward_pass(AllItems(*given[:3]), InnerProblem(*given[3:8]), given[8])
        return forward.users[-1].clone(), *forward

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save inputs and forward pass."""
        *tensors, ctx.penalty, _ = inputs
        ctx.save_for_backward(*tensors, *output[1:])
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients in all inputs but the rate."""
        table, bias, repeat_scale, feature_sum, weight, start, rate, *known = ctx.saved_tensors
        items, forward = AllItems(table, bias, repeat_scale), ForwardPass(*known)
        problem = InnerProblem(feature_sum, weight, start, rate, ctx.penalty)
        backward = backward_pass(items, problem, forward, gradients[0])
        step = problem.step[:, 0]
        to_table, to_bias, to_scale = _item_gradients(
            *items, step, forward.users, forward.norms, backward.adjoints, backward.centres
        )
        if repeat_scale is not None:
            to_scale = to_scale.sum() + (backward.repeat_parts * step).sum()
        total = backward.adjoints[1:].sum(0)
        to_problem = (
            rate[:, None] * total,
            -rate * backward.centres.sum(0),
            backward.adjoints[0] + problem.penalty_rate * total,
        )
        rest = None if repeat_scale is None else to_scale
        return to_table, to_bias, rest, *to_problem, None, None, None


class LogSumExp(torch.autograd.Function):
    """Logarithm of the sum over items of exp(logit), without the repeat feature."""

    generate_vmap_rule = True

    @staticmethod
    def forward(table: Tensor, bias: Tensor, user: Tensor) -> tuple[Tensor, Tensor]:
        """Return it [rows], and mean item vectors [rows, dim]."""
        return moments(AllItems(table, bias, None), user)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save inputs and outputs."""
        ctx.save_for_backward(*inputs, *output)
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients in items and users."""
        table, bias, user, norm, mean = ctx.saved_tensors
        items = AllItems(table, bias, None)
        given = gradients[0]
        if not any(ctx.needs_input_grad[:2]):
            return None, None, given[:, None] * mean
        to_table, to_bias, _ = _item_gradients(*items, given, user[None], norm[None], None, None)
        return to_table, to_bias, given[:, None] * mean


def _launch_forward(
    table: Tensor, bias: Tensor, repeat_scale: Tensor | None, constant: Tensor, step: Tensor,
    decay: Tensor, start: Tensor, steps: int,
) -> list[Tensor]:  # fmt: skip
    """Launch with a leading axis of runs; in the results it is second, after the steps."""
    from dips.kernels import triton_softmax

    runs, rows, width = start.shape
    users = start.new_empty(steps + 1, runs, rows, width)
    users[0] = start
    means = start.new_empty(steps, runs, rows, table.shape[2])
    norms = start.new_empty(steps, runs, rows)
    triton_softmax.descend[_grid(rows, runs)](
        table, bias, repeat_scale, constant, step, decay, users, means, norms, rows, runs,
        STEPS=steps, **_shape(table, repeat_scale, width),
    )  # fmt: skip
    return [users, means, norms]


def _launch_backward(
    table: Tensor, bias: Tensor, repeat_scale: Tensor | None, step: Tensor, decay: Tensor,
    users: Tensor, means: Tensor, norms: Tensor, last_adjoint: Tensor,
) -> list[Tensor]:  # fmt: skip
    from dips.kernels import triton_softmax

    layers, runs, rows, width = users.shape
    adjoints = torch.empty_like(users)
    adjoints[-1] = last_adjoint
    centres, repeat_parts = torch.empty_like(norms), torch.zeros_like(norms)
    triton_softmax.adjoint[_grid(rows, runs)](
        table, bias, repeat_scale, step, decay, users, means, norms, adjoints, centres,
        repeat_parts, rows, runs,
        STEPS=layers - 1, **_shape(table, repeat_scale, width),
    )  # fmt: skip
    return [adjoints, centres, repeat_parts]


def _launch_item_gradients(
    table: Tensor, bias: Tensor, repeat_scale: Tensor | None, step: Tensor, users: Tensor,
    norms: Tensor, adjoints: Tensor | None, centres: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    from dips.kernels import triton_softmax

    steps, runs, rows = norms.shape
    items, tile = table.shape[1], 64
    tiles = -(-items // tile)
    parts = max(1, min(PROGRAMS // (tiles * runs), steps * rows // MIN_ROWS))
    chunk = -(-steps * rows // parts)
    to_table = table.new_empty(parts, *table.shape)
    to_bias = table.new_empty(parts, *bias.shape)
    to_scale = table.new_empty(parts, *bias.shape) if repeat_scale is not None else to_bias
    shape = _shape(table, repeat_scale, users.shape[-1]) | {"R": 64, "N": tile}
    triton_softmax.item_gradients[(tiles, parts, runs)](
        table, bias, repeat_scale, step, users, norms, adjoints, centres, to_table, to_bias,
        to_scale, rows, runs, chunk, STEPS=steps, ADJOINT=adjoints is not None, **shape,
    )  # fmt: skip
    return [value.sum(0) for value in (to_table, to_bias, to_scale)]


def _grid(rows: int, runs: int) -> tuple[int, int]:
    return -(-rows // ROWS), runs


def _shape(table: Tensor, repeat_scale: Tensor | None, width: int) -> dict[str, Any]:
    dim = table.shape[2]
    power = max(16, 1 << (dim - 1).bit_length())
    return {
        "DIM": dim, "ITEMS": table.shape[1], "WIDTH": width, "REPEAT": repeat_scale is not None,
        "D": power, "R": ROWS, "N": TILE // (2 if repeat_scale is not None else 1),
        "PRECISION": PRECISION, "num_warps": WARPS, "num_stages": STAGES,
    }  # fmt: skip


Launch = Callable[..., list[Tensor]]


def _operation(
    name: str, schema: str, launch: Launch, given: Sequence[int] = (), found: Sequence[int] = ()
) -> Launch:
    """Return a torch operation on tensors of one run, with a rule for `vmap` over runs.

    Arguments `given` and results `found`, by index, have the steps as first axis: runs are second.
    """

    def axis_in(number: int) -> int:
        return int(number in given)

    def axis_out(number: int) -> int:
        return int(number in found)

    def one_run(*arguments: Any) -> list[Tensor]:
        wide = [
            value.unsqueeze(axis_in(number)).contiguous() if isinstance(value, Tensor) else value
            for number, value in enumerate(arguments)
        ]
        return [value.squeeze(axis_out(at)) for at, value in enumerate(launch(*wide))]

    def many_runs(
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

    operation = torch.library.custom_op(f"dips::{name}", one_run, mutates_args=(), schema=schema)
    operation.register_vmap(many_runs)
    return operation


_COMMON = "Tensor table, Tensor bias, Tensor? repeat_scale"
_forward = _operation(
    "softmax_forward",
    f"({_COMMON}, Tensor constant, Tensor step, Tensor decay, Tensor start, int steps) -> Tensor[]",
    _launch_forward,
    found=(0, 1, 2),
)
_backward = _operation(
    "softmax_backward",
    f"({_COMMON}, Tensor step, Tensor decay, Tensor users, Tensor means, Tensor norms, "
    "Tensor last_adjoint) -> Tensor[]",
    _launch_backward,
    given=(5, 6, 7),
    found=(0, 1, 2),
)
_item_gradients = _operation(
    "softmax_item_gradients",
    f"({_COMMON}, Tensor step, Tensor users, Tensor norms, Tensor? adjoints, Tensor? centres) "
    "-> Tensor[]",
    _launch_item_gradients,
    given=(4, 5, 6, 7),
)
