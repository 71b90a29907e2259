"""Several policies of one shape side by side: a leading axis of runs over all parameters.

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
    """Policies that are modules, side by side: itself a policy, over the users of all runs."""

    required_signals: tuple[str, ...]
    takes_weights: bool
    """Whether `call` takes weights."""

    def __init__(self, template: nn.Module, state: StateDict) -> None:
        super().__init__(template, state)
        name = type(template).__name__
        if not isinstance(template, Policy) or not state:
            raise ConfigError(f"{name} is not a policy with parameters")
        if template.required_signals is not True and "read" in signals_of(template):
            raise ConfigError(f"{name} has parameters: it cannot ask for 'read'")
        self.required_signals = tuple(asked for asked in signals_of(template) if asked != "read")
        self.is_random, self.keeps_all = template.is_random, template.keeps_all
        self.takes_weights = isinstance(template, Network)

    @classmethod
    def of(
        cls, modules: Sequence[nn.Module], device: torch.device | str = "cpu"
    ) -> StackedPolicies:
        """Put policies of one shape side by side, as they decide: without dropout."""
        return super().of(modules, device).with_dropout(False)

    def with_dropout(self, on: bool) -> StackedPolicies:
        """The same policies in training mode or not; the parameters are shared."""
        return StackedPolicies(copy.deepcopy(self.template).train(on), self.state)

    @cached_property
    def with_dropout_on(self) -> StackedPolicies:
        """The same policies with dropout, as they learn."""
        return self.with_dropout(True)

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        """[runs * users, candidates] scores of every run's policy for its own users."""
        return self.call(self.state, candidates, signals.select(self.required_signals))

    def call(
        self,
        state: StateDict,
        candidates: Candidates,
        answers: dict[str, Tensor],
        weight: Tensor | None = None,
    ) -> Tensor:
        """Scores under these parameters, differentiable in them and in the `weight`.

        Flat in, flat out: [runs * users, candidates]. Weights are for policies that weigh.
        """

        if isinstance(self.template, SetNetwork) and not torch.is_grad_enabled():
            quick = set_network_scores(self.template, state, candidates, answers, weight)
            if quick is not None:
                return quick
        runs = len(next(iter(state.values())))

        def split(field: Tensor) -> Tensor:
            return field.reshape(runs, -1, *field.shape[1:])

        rows = Candidates(*map(split, candidates))
        known = {name: split(value) for name, value in answers.items()}
        if weight is None:
            scores: Tensor = call_stacked(self.template, state, _score, rows, known)
        else:
            scores = call_stacked(self.template, state, _weigh, rows, known, split(weight))
        return scores.flatten(0, 1)


def _score(policy: Any, candidates: Candidates, answers: dict[str, Tensor]) -> Tensor:
    scores: Tensor = policy.score(candidates, Signals.of(answers))
    return scores


def _weigh(
    policy: nn.Module, candidates: Candidates, answers: dict[str, Tensor], weight: Tensor
) -> Tensor:
    if not isinstance(policy, Network):
        name = type(policy).__name__
        raise ConfigError(f"{name} does not weigh candidates: derive it from dips' Network")
    return policy.score_weighted(candidates, Signals.of(answers), weight)
