"""Several recommenders of one shape side by side: a leading axis of runs over all parameters.

Knows nothing of training: it evaluates functions of a recommender for every run at once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from dips.numerics.exact import PARAMETER_BITS, snap
from dips.recommender.base import Recommender

State = dict[str, Tensor]


class Stack:
    """Parameters and buffers of all runs, and a template that says what to do with them."""

    def __init__(self, template: Recommender, state: State) -> None:
        self.template = template
        self.state = state

    @classmethod
    def of(cls, recommenders: Sequence[Recommender], device: torch.device | str = "cpu") -> Stack:
        """Put recommenders of one shape side by side."""
        states = [{**dict(r.named_parameters()), **dict(r.named_buffers())} for r in recommenders]
        state = {
            name: torch.stack([each[name].detach() for each in states]).to(device)
            for name in states[0]
        }
        template = copy.deepcopy(recommenders[0]).to(device)
        template.requires_grad_(False)
        return cls(template, state)

    @property
    def runs(self) -> int:
        """How many."""
        return len(next(iter(self.state.values())))

    @property
    def trainable(self) -> list[str]:
        """Names of the parameters, without the buffers."""
        return [name for name, _ in self.template.named_parameters()]

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """`function(recommender, *args)` for every run; tensors carry a leading axis of runs."""

        def one(state: State, *rest: Any) -> Any:
            return functional_call(self.template, state, (lambda model: function(model, *rest),))

        if self.runs == 1:
            alone = one(*torch.utils._pytree.tree_map(lambda leaf: leaf[0], (self.state, *args)))
            return torch.utils._pytree.tree_map(lambda leaf: leaf[None], alone)
        return vmap(one)(self.state, *args)

    def select(self, runs: Sequence[int]) -> Stack:
        """Some of the runs."""
        index = torch.tensor(list(runs), device=next(iter(self.state.values())).device)
        return Stack(self.template, {name: value[index] for name, value in self.state.items()})

    def settled(self) -> Stack:
        """The same recommenders as decisions see them: float64, on the grid of DESIGN 1.6."""
        state = {name: snap(value, PARAMETER_BITS) for name, value in self.state.items()}
        state["inner_rate"] = self.state["inner_rate"].double()
        return Stack(copy.deepcopy(self.template).double(), state)

    def one(self, run: int) -> Recommender:
        """A run's recommender, as a module of its own on the CPU."""
        model = copy.deepcopy(self.template).cpu()
        model.load_state_dict({name: value[run].cpu() for name, value in self.state.items()})
        return model
