"""Stacked policies: parameters of several runs with a leading axis of runs.

Rows of users are in run-major order: the first rows belong to the first run.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor, nn

from dips.errors import ConfigError
from dips.numerics.stacking import StackedModules, StateDict, call_stacked
from dips.policy.base import Policy, signals_of
from dips.policy.kernel_inputs import set_network_scores
from dips.policy.network import Network
from dips.policy.set_network import SetNetwork
from dips.sketch.records import Candidates
from dips.sketch.signals import Signals


@final
class StackedPolicies(StackedModules[nn.Module], Policy):
    """Policies with parameters of one shape, one for each run. It is a policy itself.

    Raises:
        ConfigError: If the template is not a policy with parameters, or requires the signal
            "read". That signal calls the recommender, so it cannot be recorded for training.
    """

    required_signals: tuple[str, ...]
    takes_weights: bool
    """Whether the policies are `Network`s, which score weighted candidates."""

    def __init__(self, template: nn.Module, state: StateDict) -> None:
        super().__init__(template, state)
        name = type(template).__name__
        if not isinstance(template, Policy) or not state:
            raise ConfigError(f"{name} is not a policy with parameters")
        if template.required_signals is not True and "read" in signals_of(template):
            raise ConfigError(f"{name} has parameters: it cannot require the signal 'read'")
        self.required_signals = tuple(name for name in signals_of(template) if name != "read")
        self.is_random, self.keeps_all = template.is_random, template.keeps_all
        self.takes_weights = isinstance(template, Network)

    @classmethod
    def of(
        cls, modules: Sequence[nn.Module], device: torch.device | str = "cpu"
    ) -> StackedPolicies:
        """Stack policies of one shape, without dropout."""
        return super().of(modules, device).with_dropout(False)

    def with_dropout(self, on: bool) -> StackedPolicies:
        """Return the policies in training mode or not; they share parameters."""
        return StackedPolicies(copy.deepcopy(self.template).train(on), self.state)

    @cached_property
    def with_dropout_on(self) -> StackedPolicies:
        """The policies in training mode; cached."""
        return self.with_dropout(True)

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """Return scores of every run's policy for its users, [runs * users, candidates]."""
        return self.call(self.state, candidates, signals.select(self.required_signals))

    def call(
        self,
        state: StateDict,
        candidates: Candidates,
        signals: dict[str, Tensor],
        weight: Tensor | None = None,
    ) -> Tensor:
        """Return scores under given parameters, differentiable in parameters and weights.

        Args:
            state: Parameters and buffers with a leading axis of runs.
            candidates: Candidates of all runs in run-major order, [runs * users, candidates].
            signals: Tensors of the required signals, by name.
            weight: Weights of the candidates, [runs * users, candidates]; None: all 1. Only
                policies with `takes_weights` accept them.

        Returns:
            [runs * users, candidates].

        Raises:
            ConfigError: If weights are given and the policies do not take them.
        """
        if isinstance(self.template, SetNetwork) and not torch.is_grad_enabled():
            compiled = set_network_scores(self.template, state, candidates, signals, weight)
            if compiled is not None:
                return compiled
        runs = len(next(iter(state.values())))

        def split(field: Tensor) -> Tensor:
            return field.reshape(runs, -1, *field.shape[1:])

        rows = Candidates(*map(split, candidates))
        known = {name: split(value) for name, value in signals.items()}
        if weight is None:
            scores: Tensor = call_stacked(self.template, state, _score, rows, known)
        else:
            scores = call_stacked(self.template, state, _score_weighted, rows, known, split(weight))
        return scores.flatten(0, 1)


def _score(policy: Any, candidates: Candidates, signals: dict[str, Tensor]) -> Tensor:
    scores: Tensor = policy.score(candidates, Signals.of(signals))
    return scores


def _score_weighted(
    policy: nn.Module, candidates: Candidates, signals: dict[str, Tensor], weight: Tensor
) -> Tensor:
    if not isinstance(policy, Network):
        name = type(policy).__name__
        raise ConfigError(f"{name} takes no weights of candidates: derive it from dips.Network")
    return policy.score_weighted(candidates, Signals.of(signals), weight)
