"""A network over the set of candidates: it knows no item by name, so it can score new ones."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import final

import torch
from torch import Tensor, nn

from dips.data.side_information import NOTHING, SideInformation
from dips.kernels import numba_launch
from dips.kernels.triton_launch import Question, SetNet
from dips.numerics import fixed_point
from dips.numerics.newer_candidates import newer_duplicate_weight, newer_weight
from dips.numerics.stacking import StateDict
from dips.policy.base import signals_of
from dips.policy.layers import Layer, SideInputs
from dips.policy.network import Network
from dips.sketch.records import Candidates
from dips.sketch.signals import Signals

OWN, TOLD, AGE, REPEATS = 7, 1, 2, 5
"""How much is known of a candidate beside its item, and where some of it stands: `_features`."""
NAME = 8
"""Numbers that stand for a category, or for a name in a further column."""
LONG = 16.0
"""Logarithm of the time that counts as one: about a hundred days in seconds."""

MET, AGAIN = 3.0, -12.0
"""Where it starts as `frequent`: for the logarithm of repeats, and for each newer twin."""
SAFE = 6.0
"""Where it starts with the newest: what the logarithm of an age is worth to them, in logits."""
LOGS = 1 << 12
"""Logarithms of so many whole numbers are looked up."""


@final
class SetNetwork(Network):
    """Scores a candidate by what it is and by the mean of what the others are.

    The last layer, and a direct one beside it for what is simple, start at zero: the score is then
    minus `slope` for each newer candidate, which is the policy `last`. Where items come back
    (`repeat_feature`, with a small slope) it starts near the policy `frequent` instead. With
    `newest` of them it starts with these, and fills up with what is told to be likeliest (`predicted_score`).
    Its size does not grow with the catalogue; only with categories it has a table of which items
    have which.
    """

    center: Tensor
    spread: Tensor

    def __init__(
        self,
        *,
        dim: int,
        hidden: int = 64,
        center: float = 0.0,
        spread: float = 1.0,
        slope: float = 1.0,
        newest: int = 0,
        items: int = 1,
        residual: bool = True,
        predicted_score: bool = False,
        repeat_feature: bool = False,
        sides: SideInformation = NOTHING,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        generator = generator or torch.Generator().manual_seed(0)
        wanted = {
            "predicted_score": predicted_score,
            "residual": residual and not predicted_score,
            "embedding": bool(dim),
        }
        self.required_signals = tuple(name for name, asked in wanted.items() if asked)
        self.dim = dim
        self.register_buffer("center", torch.tensor(float(center)))  # each run of a stack its own
        self.register_buffer("spread", torch.tensor(float(spread)))
        self.side = SideInputs(sides, items, NAME, generator)
        self.first = Layer(dim + OWN + self.side.width, hidden, generator)
        self.alone = Layer(hidden, hidden, generator)
        self.others = Layer(hidden, hidden, generator)
        self.last = nn.Parameter(torch.zeros(hidden, 1))
        self.direct = nn.Parameter(torch.zeros(dim + OWN + self.side.width, 1))
        self.slope = nn.Parameter(torch.tensor(float(slope)))
        with torch.no_grad():
            if repeat_feature:
                self.direct[REPEATS : REPEATS + 2, 0] = torch.tensor([MET, AGAIN])
            if newest:
                self._trust(newest)

    def _trust(self, newest: int) -> None:
        """Start as what is told, with so many of the newest hardly within its reach.

        The first unit is how much less than theirs the logarithm of an age is, and nothing else.
        """
        self.direct[TOLD] = 1.0
        for layer in (self.first, self.alone, self.others):
            layer.weight[0], layer.bias[0] = 0.0, 0.0
        self.first.weight[0, AGE], self.first.bias[0] = -1.0, math.log(newest + 1)
        self.alone.weight[0, 0], self.last[0] = 1.0, SAFE

    def weigh(self, candidates: Candidates, signals: Signals, weight: Tensor) -> Tensor:
        """Two layers; between them each candidate meets the weighted mean of all."""
        weight = torch.where(candidates.present, weight, 0.0)
        total = _weighed(torch.ones_like(weight)[:, None, :], weight).clamp_min(1)
        newer = newer_weight(candidates.position, weight)
        twins = newer_duplicate_weight(candidates.position, candidates.item, weight)
        known = self._features(candidates, signals, newer / total, twins)
        first = self.first(known).relu()
        context = _weighed(first.mT, weight) / total
        second = (self.alone(first) + self.others(context)[:, None, :]).relu()
        learned = fixed_point.matmul(second, self.last) + fixed_point.matmul(known, self.direct)
        return learned[..., 0] - fixed_point.quantize_parameter(self.slope) * newer

    def _features(
        self, candidates: Candidates, signals: Signals, rank: Tensor, twins: Tensor
    ) -> Tensor:
        """[users, candidates, OWN + side + dim]."""
        own = [
            (candidates.rating.double() - self.center.double()) / self.spread.double(),
            self._told(signals, rank) / self.spread.double(),
            candidates.age.double().log1p(),
            rank,
            candidates.elapsed.clamp_min(0).double().log1p() / LONG,
            candidates.repeats.double().log1p(),
            twins,  # newer candidates of the same item
        ]
        known = torch.cat([torch.stack(own, -1), self.side(candidates)], -1)
        if self.dim:
            known = torch.cat([known, signals.embedding.double()], -1)
        return torch.where(candidates.present[..., None], known, 0.0)

    def _told(self, signals: Signals, like: Tensor) -> Tensor:
        """[users, candidates] what the recommender tells of each, if it is asked."""
        asked = signals_of(self)
        if "predicted_score" in asked:
            return signals.predicted_score
        return signals.residual if "residual" in asked else torch.zeros_like(like)


def _weighed(values: Tensor, weight: Tensor) -> Tensor:
    """[users, n] sums over candidates of `values` [users, n, candidates] by weight."""
    return fixed_point.matmul(values, weight[:, :, None])[..., 0]


def set_scores(
    network: SetNetwork,
    state: StateDict,
    candidates: Candidates,
    answers: dict[str, Tensor],
    weight: Tensor | None,
) -> Tensor | None:
    """[rows, candidates] `weigh` for rows of all runs, from compiled loops; None: not possible."""
    plain = candidates.item.device.type == "cpu" and numba_launch.installed("numba")
    if not plain or network.side.width:
        return None
    present = candidates.present
    weight = present.double() if weight is None else fixed_point.quantize_parameter(weight) * present
    nothing, none = weight.new_zeros(*weight.shape, 0), torch.zeros_like(weight)
    question = Question(
        **{name: getattr(candidates, name) for name in Question._fields[:6]},
        weight=weight,
        told=answers.get("predicted_score", answers.get("residual", none)).double(),
        embedding=answers["embedding"].double() if network.dim else nothing,
    )
    return numba_launch.set_scores(question, grid_layers(state, LOGS))


def grid_layers(state: StateDict, logs: int) -> SetNet:
    """Networks as they decide, for each run, for compiled programs; a table of so many logarithms.

    There are no programs for side information.
    """
    weight = fixed_point.quantize_parameter(state["first.weight"])
    direct = fixed_point.quantize_parameter(state["direct"])[..., 0]
    scale = [state["center"].double(), state["spread"].double(), fixed_point.quantize_parameter(state["slope"])]
    return SetNet(
        scale=torch.stack(scale, 1),
        enter=weight[..., OWN:].mT,
        enter_bias=fixed_point.quantize_parameter(state["first.bias"]),
        straight=direct[:, OWN:],
        own=weight[..., :OWN].mT,
        direct=direct[:, :OWN],
        alone=fixed_point.quantize_parameter(state["alone.weight"]).mT,
        others=fixed_point.quantize_parameter(state["others.weight"]).mT,
        bias=fixed_point.quantize_parameter(state["alone.bias"]) + fixed_point.quantize_parameter(state["others.bias"]),
        last=fixed_point.quantize_parameter(state["last"])[..., 0],
        logs=_logs(logs, weight.device),
    )


@lru_cache(maxsize=4)
def _logs(count: int, device: torch.device) -> Tensor:
    """The logarithms of 1, 2, ..., count + 1 as the network's first layer sees them."""
    whole = torch.arange(count + 1, device=device).double()
    return fixed_point.quantize_straight_through(whole.log1p(), fixed_point.STATE_BITS, fixed_point.STATE_LIMIT)
