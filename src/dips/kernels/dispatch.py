"""Choose compiled kernels: the only file of this folder, with `layout`, that other folders import.

Each function has a reference in torch and takes plain specifications and tensors. It uses numba on
the CPU and Triton on CUDA, and says when neither fits; the caller then uses the reference path. The
results of all decision kernels equal the reference path bit for bit.

Decisions (`compiler_for`), for `Greedy` selection:

| scorer | signals and their recommender | rollout: numba | Triton | keeper: numba |
|---|---|---|---|---|
| set network, no side information | none | yes | yes | yes |
| | embedding: `dot`, `mlp` | yes | yes | yes |
| | residual: `dot`, mse | yes | yes | yes |
| | predicted score: `dot`, linearised softmax | yes | yes | yes |
| paper's network, no side information, no dropout | none | yes | yes | yes |
| hardest | loss: `dot`, mse | yes | yes | yes |
| hardest:H | loss: `dot`, mse | yes | yes | yes |
| influence, candidates <= dimensions | read: `dot`, mse | yes | yes | no |
| influence:H, candidates <= dimensions | read: `dot`, mse | yes | no | no |
| last-top:M | predicted score: `dot`, linearised softmax | yes | yes | yes |
| last, reservoir, mix:M, last-distinct, frequent | none | yes | yes | yes |

A recommender with a clock is not supported. The keeper needs a refresh after every interaction.

| limit | numba | Triton |
|---|---|---|
| size of a sketch | 65,536 | 64 |
| candidates | 65,536 | 128 |
| dimensions of a linearised softmax | 65,536 | 128 |
| numbers in the item tables, or in the workspace | 2^28 | 2^28 |

Scores of set networks and residuals (`set_network_scores`, `residuals`): numba on the CPU. Softmax
over all items, in float32: numba on the CPU (`softmax_cpu`), Triton on CUDA up to 128 dimensions
(`softmax_cuda`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from dips.kernels import layout, numba_launch, triton_launch
from dips.kernels.cache import cache_directory, compiled_kernels
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
from dips.kernels.softmax_cpu import (
    SoftmaxEntryGradients,
    SoftmaxLoss,
    SoftmaxProblem,
    softmax_scores,
)
from dips.kernels.softmax_cuda import LogSumExp as CudaLogSumExp
from dips.kernels.softmax_cuda import SoftmaxDescent as CudaSoftmaxDescent
from dips.kernels.softmax_cuda import backward_pass as cuda_backward_pass
from dips.kernels.softmax_cuda import forward_pass as cuda_forward_pass
from dips.kernels.softmax_cuda import moments as cuda_moments
from dips.numerics.fixed_point import STATE_BITS, STATE_LIMIT, quantize_clamped

__all__ = [
    "ArrivalKernel",
    "CudaLogSumExp",
    "CudaSoftmaxDescent",
    "DecisionSpec",
    "ModelSpec",
    "SoftmaxEntryGradients",
    "SoftmaxLoss",
    "SoftmaxProblem",
    "cache_directory",
    "compiled_kernels",
    "compiler_for",
    "computed_signals",
    "cuda_backward_pass",
    "cuda_forward_pass",
    "cuda_moments",
    "decay_factors",
    "has_cpu_softmax",
    "has_cuda_softmax",
    "has_keeper",
    "has_residuals",
    "installed",
    "keeper",
    "residuals",
    "roll_out",
    "set_network_scores",
    "softmax_scores",
    "with_tables",
]

COMPILERS = {"cuda": "triton", "cpu": "numba"}
"""Compiler by device type; tests run Triton's interpreter on the CPU."""
SOFTMAX_DEVICES = {"cuda"}
"""Device types of the Triton softmax; tests add the CPU, for Triton's interpreter."""
SOFTMAX_DIM = 128
"""Most dimensions of the Triton softmax."""
MOST_NUMBERS = 1 << 28
"""Most numbers in the item tables of networks, and in the workspace of programs."""
TABLE_ROWS = 1 << 16
"""Items of which a keeper holds a table: 8 bytes for each hidden unit."""
DECAY_ROWS = 1 << 20
"""Longest table of decay factors."""


class Limits(NamedTuple):
    """Largest inputs of a compiler's programs."""

    size: int
    candidates: int
    dim: int  # of a linearised softmax


LIMITS = {
    "numba": Limits(1 << 16, 1 << 16, 1 << 16),
    "triton": Limits(64, 128, 128),
}

KEEPER_SCORERS = tuple(code for code in range(layout.FREQUENT + 1) if code != layout.INFLUENCE)


class ModelSpec(NamedTuple):
    """A recommender, as far as support depends on it."""

    kind: str
    """`dot`, `mlp`, or any other name."""
    loss: str
    """`mse`, `softmax`, or any other name."""
    has_times: bool
    """Whether scores depend on the time of an interaction."""
    is_linearisable: bool
    """Whether predicted scores come from the linearised softmax."""
    dim: int
    """Dimensions of its item vectors."""


class DecisionSpec(NamedTuple):
    """What a rollout or a keeper decides with, as far as support depends on it."""

    code: int | None
    """Code of the scorer in `layout`; None: a policy without kernels."""
    signals: tuple[str, ...]
    """Signals that the scorer reads."""
    model: ModelSpec | None
    """The recommender; None: there is none."""
    is_greedy: bool
    """Whether the K highest scores are kept."""
    size: int
    period: int
    """Most new events in a refresh."""
    half_life: float | None = None
    """Half-life of scores in steps; None: no decay."""
    recorded: tuple[str, ...] = ()
    """Signals that a rollout records."""
    hidden: int = 0
    """Hidden units of a network."""
    items: int = 0
    """Items in its tables."""
    rows: int = 0
    """Users that are rolled out."""
    runs: int = 1


@cache
def installed(compiler: str) -> bool:
    """Return whether this package is installed; it is imported later."""
    return find_spec(compiler) is not None


def computed_signals(model: ModelSpec | None) -> frozenset[str]:
    """Return the signals that kernels compute for a recommender."""
    if model is None or model.has_times or model.kind not in ("dot", "mlp"):
        return frozenset()
    if model.kind == "dot" and model.loss == "mse":
        return frozenset({"embedding", "residual", "loss", "read"})
    return frozenset({"embedding", "predicted_score"} if model.is_linearisable else {"embedding"})


def compiler_for(spec: DecisionSpec, device: torch.device) -> str:
    """Return the compiler whose rollout supports a specification.

    Args:
        spec: The scorer, its signals and its sizes.
        device: Where the users' events are.

    Returns:
        "numba", "triton", or "" for the reference path.
    """
    compiler = COMPILERS.get(device.type, "")
    if not compiler or not installed(compiler) or not _is_supported(spec, LIMITS[compiler]):
        return ""
    if not set(spec.recorded) <= set(spec.signals) & {"residual", "predicted_score"}:
        return ""
    width = spec.size + spec.period
    numbers = max(spec.runs * spec.items, spec.rows * width) * spec.hidden
    if spec.code == layout.INFLUENCE and (spec.model is None or width > spec.model.dim):
        return ""
    if compiler == "triton" and spec.code == layout.INFLUENCE and spec.half_life is not None:
        return ""
    return compiler if numbers <= MOST_NUMBERS else ""


def has_keeper(spec: DecisionSpec) -> bool:
    """Return whether `keeper` supports a specification, on the CPU."""
    known = spec.code in KEEPER_SCORERS and spec.period == 1
    known = known and _decay_rows(spec.half_life, None) <= DECAY_ROWS
    return known and installed("numba") and _is_supported(spec, LIMITS["numba"])


def _is_supported(spec: DecisionSpec, limits: Limits) -> bool:
    """Return whether scorer, signals and sizes are within a compiler's limits."""
    if spec.code is None or not spec.is_greedy:
        return False
    if not set(spec.signals) <= computed_signals(spec.model):
        return False
    wide = spec.model is not None and spec.model.dim > limits.dim
    if wide and "predicted_score" in spec.signals:
        return False
    return spec.size <= limits.size and spec.size + spec.period <= limits.candidates


def roll_out(compiler: str, inputs: RolloutInputs, state: RolloutState, scorer: Scorer) -> None:
    """Roll out all users through their refreshes, in one launch.

    Time of the reference path / time of numba, both on one core, 184,000 events, K = 4: `learned`
    6.2, `hardest` 8.0, `last` 8.1, `last-top` 2.6. Triton: see `triton_rollout`.

    Args:
        compiler: From `compiler_for`.
        inputs: Users, refreshes and events.
        state: Sketches [rows, size], of which `position` and `repeats` change, and the records.
        scorer: The policies of all runs.
    """
    launch = triton_launch.roll_out if compiler == "triton" else numba_launch.roll_out
    launch(inputs, state, scorer)


ArrivalKernel = Callable[[SketchArrays, Tensor, Tensor, EventArrays, Tensor, Tensor], None]
"""`observe(sketch, seen, user, events, key, number)`: see `keeper`."""


def keeper(scorer: Scorer) -> ArrivalKernel:
    """Return a function that refreshes sketches after each arrival, with numba.

    Time of the reference path / time of numba, both on one core, batches of 1,000 arrivals, K = 8:
    `learned` 8.4, `last` 19.

    Args:
        scorer: The policy of one run. Its tables are converted once.

    Returns:
        `observe(sketch, seen, user, events, key, number)`. It changes `sketch` [users, size] and
        `seen` [users] in place: the events [n] of `user` [n] arrive in this order. `key` [users]
        gives random priorities and may be empty. `number` maps item codes to rows of the item
        tables, -1 for unknown items; empty: codes are rows.
    """
    return numba_launch.keeper(scorer)


def set_network_scores(inputs: SetNetworkInputs, layers: SetNetworkLayers) -> Tensor | None:
    """Return scores of set networks [rows, candidates], float64; None: use the reference path.

    Time of the reference path / time of numba, both on one core, 9 candidates: 7.1.

    Args:
        inputs: Candidates of all runs.
        layers: Parameters of all runs; `table` and `vectors` are not used.
    """
    if inputs.position.device.type != "cpu" or not installed("numba"):
        return None
    return numba_launch.set_network_scores(inputs, layers)


def has_residuals(model: ModelSpec, device: torch.device) -> bool:
    """Return whether `residuals` supports a recommender on a device."""
    return device.type == "cpu" and installed("numba") and "residual" in computed_signals(model)


def residuals(inputs: ResidualInputs, model: SquaredErrorModel) -> Tensor:
    """Return 2 (rating - prediction) [rows, n], standardised, for the user vectors after Eq. 2.

    Time of the reference path / time of numba, both on one core, K = 8: 5.5.

    Args:
        inputs: Sketches, and items whose ratings are predicted from them.
        model: The recommenders of all runs. See `has_residuals`.
    """
    return numba_launch.residuals(inputs, model)


def has_cpu_softmax(table: Tensor) -> bool:
    """Return whether numba loops compute the softmax over items with these vectors.

    They are `SoftmaxLoss`, `SoftmaxEntryGradients` and `softmax_scores`. They are for dot products
    whose scores do not depend on times.
    """
    return table.device.type == "cpu" and table.dtype == torch.float32 and installed("numba")


def has_cuda_softmax(table: Tensor) -> bool:
    """Return whether Triton programs compute the softmax over items with these vectors [.., dim].

    They are `CudaSoftmaxDescent`, `CudaLogSumExp`, `cuda_forward_pass`, `cuda_backward_pass` and
    `cuda_moments`.
    """
    here = table.device.type in SOFTMAX_DEVICES and installed("triton")
    return here and table.dtype == torch.float32 and table.shape[-1] <= SOFTMAX_DIM


def with_tables(layers: SetNetworkLayers, vectors: Tensor, rows: int) -> SetNetworkLayers:
    """Return layers of set networks with tables of what items add to them.

    Args:
        layers: The networks of all runs.
        vectors: [runs, items, dim] item vectors; dim is 0 where the network reads none.
        rows: Number of items in the tables; later items are computed from their vectors.
    """
    known = quantize_clamped(vectors[:, :rows], STATE_BITS, STATE_LIMIT)
    table = known @ layers.item_weight + layers.item_bias[:, None]
    direct = (known @ layers.item_direct[..., None])[..., 0]
    rest = vectors if vectors.shape[1] > rows else vectors[:, :0]
    return layers._replace(table=table, table_direct=direct, vectors=rest)


def decay_factors(
    half_life: float | None, longest: int | None = None, device: torch.device | None = None
) -> Tensor:
    """Return 2 ** (-age / half_life) by age [ages], from torch; the last is also for older ages.

    Args:
        half_life: In steps. None gives an empty table: no decay.
        longest: Number of ages that occur; None: any age may occur.
        device: Where they are computed: the last bits differ between devices. None: the CPU.
    """
    if half_life is None:
        return layout.NO_DECAY
    age = torch.arange(_decay_rows(half_life, longest), device=device).double()
    return torch.exp2(-age.clamp_min(0) / half_life)


def _decay_rows(half_life: float | None, longest: int | None) -> int:
    """Return the number of ages in a table of decay factors."""
    if half_life is None:
        return 0
    rows = 1080 * half_life + 2  # 2 ** -1080 is 0 in float64
    return int(rows if longest is None else min(rows, longest)) + 1
