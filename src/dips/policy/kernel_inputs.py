"""Describe policies to the kernels: plain specifications and tensors.

`dips.kernels.dispatch` decides from the specification whether kernels exist. Knows nothing of
recommenders, except the plain records that it is given.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from dips.kernels import dispatch, layout
from dips.kernels.dispatch import DecisionSpec, ModelSpec
from dips.kernels.layout import (
    FEATURES,
    LinearisedSoftmaxModel,
    PaperNetworkLayers,
    Scorer,
    SetNetworkInputs,
    SetNetworkLayers,
    SquaredErrorModel,
)
from dips.numerics.fixed_point import STATE_BITS, STATE_LIMIT, quantize_clamped, quantize_parameter
from dips.numerics.stacking import StateDict
from dips.policy.base import Policy, signals_of
from dips.policy.frequency import Frequent
from dips.policy.hardest import Hardest
from dips.policy.influence import Influence
from dips.policy.last_top import LastTop
from dips.policy.paper_network import PaperNetwork
from dips.policy.recency import Last, LastDistinct
from dips.policy.reservoir import Mix, Reservoir
from dips.policy.set_network import SetNetwork
from dips.sketch.records import Candidates

LOG_ROWS = 1 << 12
"""Length of the log table when the longest history is not known; larger numbers are computed."""
CODES: dict[type[Policy], int] = {
    Hardest: layout.HARDEST,
    Influence: layout.INFLUENCE,
    LastTop: layout.LAST_TOP,
    Last: layout.LAST,
    Reservoir: layout.RESERVOIR,
    Mix: layout.MIX,
    LastDistinct: layout.LAST_DISTINCT,
    Frequent: layout.FREQUENT,
}
SIGNAL_CODES = {
    "residual": layout.RESIDUAL,
    "loss": layout.LOSS,
    "predicted_score": layout.PREDICTED_SCORE,
}


def decision_spec(
    policy: Policy, model: ModelSpec | None, *, size: int, **rest: Any
) -> DecisionSpec:
    """Return what `dispatch` needs to know to support a policy.

    Args:
        policy: One policy; of stacked policies the template.
        model: The recommender that computes its signals; None: there is none.
        size: Entries of a sketch.
        rest: Further fields of `DecisionSpec`.
    """
    return DecisionSpec(
        code=_code(policy, size),
        signals=signals_of(policy),
        model=model,
        size=size,
        half_life=_half_life(policy),
        hidden=_hidden(policy),
        **rest,
    )


def scorer_of(
    policy: Policy,
    state: StateDict,
    *,
    runs: int,
    signal_model: SquaredErrorModel | LinearisedSoftmaxModel | None = None,
    vectors: Tensor | None = None,
    items: Tensor | None = None,
    longest: int | None = None,
    table_rows: int = dispatch.TABLE_ROWS,
) -> Scorer:
    """Return a policy of each run as kernels compute it.

    Args:
        policy: A policy with a code, see `decision_spec`; of stacked policies the template.
        state: Parameters with a leading axis of runs; empty for rules.
        runs: Number of runs.
        signal_model: The recommenders that compute the signal, if the policy reads one.
        vectors: [runs, items, dim] item vectors, if the policy reads embeddings.
        items: [n] the items in the tables; None: all.
        longest: Length of the longest history; None: any length may occur.
        table_rows: Number of items whose part of a set network is computed in advance.
    """
    code = _code(policy, policy.size if isinstance(policy, Influence) else 0)
    assert code is not None, "see decision_spec"
    device = None if items is None else items.device
    parts: dict[str, Any] = {"decay": dispatch.decay_factors(_half_life(policy), longest, device)}
    if isinstance(signal_model, SquaredErrorModel):
        parts["squared_error"] = signal_model
    elif isinstance(signal_model, LinearisedSoftmaxModel):
        parts["linearised_softmax"] = signal_model
    if isinstance(policy, SetNetwork):
        layers = set_network_layers(state, LOG_ROWS if longest is None else longest)
        if vectors is None:
            vectors = layers.bias.new_zeros(runs, 0 if items is None else len(items), 0)
        parts["set_network"] = dispatch.with_tables(layers, vectors, table_rows)
    elif isinstance(policy, PaperNetwork):
        parts["paper_network"] = paper_network_layers(state, items)
    elif isinstance(policy, Mix | LastTop):
        parts["newest"] = policy.newest
    elif isinstance(policy, Influence):
        parts["damping"] = policy.damping
    signal = [SIGNAL_CODES[name] for name in signals_of(policy) if name in SIGNAL_CODES]
    parts["signal"] = signal[0] if signal and signal_model is not None else layout.NO_SIGNAL
    return Scorer(code=code, runs=runs, **parts)


def set_network_scores(
    network: SetNetwork,
    state: StateDict,
    candidates: Candidates,
    signals: dict[str, Tensor],
    weight: Tensor | None,
) -> Tensor | None:
    """Return scores of stacked set networks from kernels; None: use the reference path.

    Args:
        network: The template of all runs.
        state: Parameters with a leading axis of runs.
        candidates: [rows, candidates] in run-major order.
        signals: Signals that the network reads, by name.
        weight: [rows, candidates] weights of the candidates; None: 1.

    Returns:
        [rows, candidates] float64, bit for bit those of `SetNetwork.score_weighted`.
    """
    if network.side.width:
        return None
    present = candidates.present
    weight = present.double() if weight is None else quantize_parameter(weight) * present
    no_embedding, no_signal = weight.new_zeros(*weight.shape, 0), torch.zeros_like(weight)
    inputs = SetNetworkInputs(
        position=candidates.position,
        item=candidates.item,
        rating=candidates.rating,
        time=candidates.time,
        repeats=candidates.repeats,
        seen=candidates.seen,
        weight=weight,
        signal=signals.get("predicted_score", signals.get("residual", no_signal)).double(),
        embedding=signals["embedding"].double() if network.dim else no_embedding,
    )
    return dispatch.set_network_scores(inputs, set_network_layers(state, LOG_ROWS))


def set_network_layers(state: StateDict, logs: int) -> SetNetworkLayers:
    """Return the parameters of set networks on the fixed-point grid, without item tables.

    Args:
        state: Parameters with a leading axis of runs, of networks without side information.
        logs: Length of the table of logarithms.
    """
    fixed = {name: quantize_parameter(value) for name, value in state.items()}
    first, direct = fixed["first.weight"], fixed["direct"][..., 0]
    scale = [state["center"].double(), state["spread"].double(), fixed["slope"]]
    count = len(FEATURES)
    return layout.NO_SET_NETWORK._replace(
        scale=torch.stack(scale, 1),
        item_weight=first[..., count:].mT,
        item_bias=fixed["first.bias"],
        item_direct=direct[:, count:],
        feature_weight=first[..., :count].mT,
        feature_direct=direct[:, :count],
        candidate_weight=fixed["candidate.weight"].mT,
        context_weight=fixed["context.weight"].mT,
        bias=fixed["candidate.bias"] + fixed["context.bias"],
        output=fixed["output"][..., 0],
        logs=_logs(logs, first.device),
    )


def paper_network_layers(state: StateDict, items: Tensor | None) -> PaperNetworkLayers:
    """Return the parameters of the paper's networks on the fixed-point grid.

    Args:
        state: Parameters with a leading axis of runs, of networks without side information.
        items: [n] the items in the tables; None: all.
    """
    names = ("input_weight", "output_weight", "output_bias")
    if items is not None:
        state = state | {name: state[name][:, items] for name in names}
    fixed = {name: quantize_parameter(value) for name, value in state.items()}
    return PaperNetworkLayers(
        fixed["input_weight"],
        fixed["input_bias"],
        fixed["hidden.weight"].mT,
        fixed["hidden.bias"],
        fixed["output_weight"],
        fixed["output_bias"][..., 0],
        state["spread"].double(),
    )


@lru_cache(maxsize=4)
def _logs(count: int, device: torch.device) -> Tensor:
    """Return log(1 + n) for n = 0, ..., count on the fixed-point grid of network states."""
    whole = torch.arange(count + 1, device=device).double()
    return quantize_clamped(whole.log1p(), STATE_BITS, STATE_LIMIT)


def _code(policy: Policy, size: int) -> int | None:
    """Return the code of a policy in `layout`; None: kernels cannot compute it."""
    if isinstance(policy, SetNetwork):
        return None if policy.side.width else layout.SET_NETWORK
    if isinstance(policy, PaperNetwork):
        plain = not policy.blocks and not (policy.training and policy.dropout)
        return layout.PAPER_NETWORK if plain else None
    if isinstance(policy, Influence) and policy.size != size:
        return None
    return CODES.get(type(policy))


def _half_life(policy: Policy) -> float | None:
    return policy.half_life if isinstance(policy, Hardest | Influence) else None


def _hidden(policy: Policy) -> int:
    """Return the number of hidden units of a network, 0 for rules."""
    if isinstance(policy, SetNetwork):
        return policy.output.shape[0]
    return policy.input_weight.shape[1] if isinstance(policy, PaperNetwork) else 0
