"""Launch the Triton rollouts (`triton_rollout`): one program per user and run.

Only `dispatch` calls this file. It needs triton, which comes with builds of torch for CUDA, and
imports it at the first launch. The results equal the reference path bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from dips.kernels.layout import (
    HARDEST,
    INFLUENCE,
    MIX,
    PAPER_NETWORK,
    SET_NETWORK,
    LinearisedSoftmaxModel,
    RolloutInputs,
    RolloutState,
    Scorer,
    SquaredErrorModel,
)
from dips.numerics.fixed_point import STATE_BITS, STATE_LIMIT, quantize_clamped

SignalModel = SquaredErrorModel | LinearisedSoftmaxModel | None
"""The recommender that computes a signal; None: the scorer reads no signal."""
ACROSS = ("table", "feature_weight", "candidate_weight", "context_weight", "bias", "output")
"""Layers of the set network whose last axis is padded to a power of two."""


def roll_out(inputs: RolloutInputs, state: RolloutState, scorer: Scorer, warps: int = 0) -> None:
    """Roll out all users; change `position` and `repeats` and fill the records in place.

    `warps` overrides the number of warps of a network's program.
    """
    period = int(inputs.refreshes[:, 1].max())
    launch = {
        SET_NETWORK: _set_network,
        PAPER_NETWORK: _paper_network,
        INFLUENCE: _influence,
    }.get(scorer.code, _rule)
    with torch.cuda.device_of(state.position):  # type: ignore[no-untyped-call]
        launch(inputs, state, scorer, period, warps)


def _set_network(
    inputs: RolloutInputs, state: RolloutState, scorer: Scorer, period: int, warps: int
) -> None:
    from dips.kernels.triton_rollout import roll_out_set_network

    layers, model = scorer.set_network, scorer.signal_model
    runs, items, hidden = layers.table.shape
    rows, size = state.position.shape
    width, units = _power(size + period), _power(hidden)
    wide = layers._replace(**{name: _wide(getattr(layers, name)) for name in ACROSS})
    names = ("scale", "table", "table_direct", "feature_weight", "feature_direct",
             "candidate_weight", "context_weight", "bias", "output", "logs")  # fmt: skip
    roll_out_set_network[(rows,)](
        *inputs[:-1],
        *state,
        *(getattr(wide, name).contiguous() for name in names),
        _ranks(size, period, layers.logs),
        *_signal_tables(model),
        layers.table.new_empty(rows * (width + 1) * units),
        rows // runs,
        runs,
        items,
        0 if state.signal is None else state.signal.shape[1],
        _ages(model),
        HIDDEN=hidden,
        N=width,
        H=units,
        **_signal_sizes(model, size),
        num_warps=warps or max(_warps(width, units), _square_warps(model)),
        **OPTIONS,
    )


def _paper_network(
    inputs: RolloutInputs, state: RolloutState, scorer: Scorer, period: int, warps: int
) -> None:
    from dips.kernels.triton_rollout import roll_out_paper_network

    layers = scorer.paper_network
    runs, items, hidden = layers.input_weight.shape
    rows, size = state.position.shape
    width, units = _power(size + period), _power(hidden)
    roll_out_paper_network[(rows,)](
        *_without_times(inputs),
        *_without_signal(state),
        *(_wide(field) for field in layers[:5]),
        layers.output_bias.contiguous(),
        layers.spread.contiguous(),
        layers.input_weight.new_empty(rows * units),
        rows // runs,
        runs,
        items,
        SIZE=size,
        HIDDEN=hidden,
        N=width,
        H=units,
        num_warps=warps or _warps(width, units),
        **OPTIONS,
    )


def _rule(
    inputs: RolloutInputs, state: RolloutState, scorer: Scorer, period: int, warps: int
) -> None:
    from dips.kernels.triton_rollout import roll_out_rule

    del warps
    model = scorer.signal_model
    rows, size = state.position.shape
    items, dim = (0, 0) if model is None else model.vectors.shape[1:]
    width = _power(size + period)
    age_table = _age_table(scorer, inputs.start.device)
    roll_out_rule[(rows,)](
        *_without_times(inputs),
        inputs.key,
        *state,
        age_table,
        *_signal_tables(model),
        rows // scorer.runs,
        scorer.runs,
        items,
        0 if state.signal is None else state.signal.shape[1],
        _ages(model),
        scorer.newest,
        0 if age_table is None else len(age_table),
        CODE=scorer.code,
        N=width,
        **_signal_sizes(model, size),
        num_warps=max(_warps(width, _power(dim) if dim else width), _square_warps(model)),
        **OPTIONS,
    )


def _influence(
    inputs: RolloutInputs, state: RolloutState, scorer: Scorer, period: int, warps: int
) -> None:
    from dips.kernels.triton_rollout import roll_out_influence

    del warps
    model = scorer.squared_error
    runs, items, dim = model.vectors.shape
    rows, size = state.position.shape
    width = _power(size + period)
    roll_out_influence[(rows,)](
        *_without_times(inputs),
        *_without_signal(state),
        *_tables(model),
        model.constants.contiguous(),
        model.constants.new_tensor(scorer.damping),
        rows // runs,
        runs,
        items,
        SIZE=size,
        STEPS=model.steps,
        PENALTY=int(model.has_penalty),
        DIM=dim,
        N=width,
        D=_power(dim),
        num_warps=_warps(width, width),
        **OPTIONS,
    )


OPTIONS: dict[str, Any] = {"num_stages": 1, "enable_fp_fusion": False}
"""Products and sums are fused only where a program asks for it (`tl.fma`)."""


def _without_times(inputs: RolloutInputs) -> tuple[Tensor, ...]:
    """Return all inputs but times and keys."""
    return inputs[:-2]


def _without_signal(state: RolloutState) -> tuple[Tensor | None, ...]:
    """Return the state but for the recorded signal."""
    return (*state[:4], *state[5:])


def _age_table(scorer: Scorer, device: torch.device) -> Tensor | None:
    """Return decay factors, or the scores of the newest of `mix:M`, by age; None: neither.

    torch computes them on the device of the rollout, so that they equal the reference path.
    """
    if scorer.code == MIX:
        return 2.0 - torch.arange(scorer.newest, device=device) / scorer.newest
    return scorer.decay if scorer.code == HARDEST and len(scorer.decay) else None


def _signal_tables(model: SignalModel) -> tuple[Tensor | None, ...]:
    """Return the tables of the model that computes the signal, as programs read them."""
    if isinstance(model, SquaredErrorModel):
        return (*_tables(model), _adapt_constants(model), None, None, None, None)
    if model is None:
        return (None,) * 8
    dim = model.vectors.shape[2]
    curvature = pad(_wide(model.curvature), (0, 0, 0, _power(dim) - dim)).contiguous()
    linearised_constants = torch.stack([model.rate[:, -1], model.curvature_bound], 1)
    known = _wide(model.vectors), model.intercept.contiguous(), None, None
    age_weight = model.age_weight.contiguous()
    return (*known, _wide(model.direction), curvature, age_weight, linearised_constants)


def _signal_sizes(model: SignalModel, size: int) -> dict[str, int]:
    """Return the sizes with which programs adapt a model to sketches."""
    dim = 0 if model is None else model.vectors.shape[2]
    return {
        "SIZE": size,
        "STEPS": 0 if model is None else model.steps,
        "BY_COEFFICIENTS": int(size < dim + 1),  # as `descent.descend_linear` decides
        "PENALTY": int(isinstance(model, SquaredErrorModel) and model.has_penalty),
        "DIM": dim,
        "K": _power(size),
        "D": _power(dim),
    }


def _ages(model: SignalModel) -> int:
    """Return the number of ages that a model weighs."""
    return model.age_weight.shape[1] if isinstance(model, LinearisedSoftmaxModel) else 0


def _square_warps(model: SignalModel) -> int:
    """Return the number of warps that leaves 32 numbers of the curvature to a thread."""
    if not isinstance(model, LinearisedSoftmaxModel):
        return 0
    return min(16, _power(model.vectors.shape[2]) ** 2 // 1024)


def _tables(model: SquaredErrorModel) -> tuple[Tensor, Tensor, Tensor]:
    """Return item vectors, intercepts and priors, as programs read them."""
    return _wide(model.vectors), model.intercept.contiguous(), model.prior.contiguous()


def _adapt_constants(model: SquaredErrorModel) -> Tensor:
    """Return [runs, 5] loading of the user bias, rate of full sketches, twice the prior penalty.

    Center and spread of ratings follow.
    """
    return model.constants[:, [0, -1, 1, 2, 3]]


def _ranks(size: int, period: int, like: Tensor) -> Tensor:
    """Return [period + 1, candidates] the share of newer candidates, by number of new ones."""
    total = size + torch.arange(period + 1, device=like.device).double()[:, None]
    newer = total - 1 - torch.arange(_power(size + period), device=like.device)
    return quantize_clamped(newer.clamp_min(0) / total, STATE_BITS, STATE_LIMIT)


def _power(count: int) -> int:
    """Return the next power of two."""
    return 1 << max(0, count - 1).bit_length()


def _warps(width: int, units: int) -> int:
    """Return the number of warps that leaves 8 numbers of the widest layer to a thread."""
    return min(16, max(1, width * units // 256))


def _wide(field: Tensor) -> Tensor:
    """Return the tensor with its last axis padded with zeros to a power of two."""
    return pad(field, (0, _power(field.shape[-1]) - field.shape[-1])).contiguous()
