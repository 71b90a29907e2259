"""Modules of one shape side by side: a leading axis of runs over all parameters and buffers.

Knows nothing of what the modules are for: it evaluates functions of a module for every run at once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_map

State = dict[str, Tensor]
Module = TypeVar("Module", bound=nn.Module)


def under(prefix: str, tensors: State) -> State:
    """The tensors whose names begin so, by the rest of the name."""
    return {
        name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)
    }


class StackedModules(Generic[Module]):
    """Parameters and buffers of all runs, and a template that says what to do with them."""

    def __init__(self, template: Module, state: State) -> None:
        self.template = template
        self.state = state

    @classmethod
    def of(cls, modules: Sequence[Module], device: torch.device | str = "cpu") -> Self:
        """Put modules of one shape side by side."""
        states = [{**dict(m.named_parameters()), **dict(m.named_buffers())} for m in modules]
        state = {
            name: torch.stack([each[name].detach() for each in states]).to(device)
            for name in states[0]
        }
        template = copy.deepcopy(modules[0]).to(device)
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

    def select(self, runs: Sequence[int]) -> Self:
        """Some of the runs, to look at: where there is but one, nothing is copied."""
        if self.runs == 1:
            same = {name: v.expand(len(runs), *v.shape[1:]) for name, v in self.state.items()}
            return type(self)(self.template, same)
        index = torch.tensor(list(runs), device=next(iter(self.state.values())).device)
        return type(self)(self.template, {name: v[index] for name, v in self.state.items()})

    def one(self, run: int) -> Module:
        """A run's module, on its own on the CPU."""
        module = copy.deepcopy(self.template).cpu()
        module.load_state_dict({name: value[run].cpu() for name, value in self.state.items()})
        return module


class _Task(nn.Module):
    """A module whose `forward` is any function of another: `functional_call` needs a forward."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, function: Callable[..., Any], *args: Any) -> Any:
        """The function of the module inside, as its parameters are now."""
        return function(self.module, *args)


def each(template: nn.Module, state: State, function: Callable[..., Any], *args: Any) -> Any:
    """`function(module, *args)` for every run; tensors carry a leading axis of runs.

    Differentiable in `state`, also by `torch.func`. One run alone is called without `vmap`. Where
    a module draws random numbers by torch (dropout of the user's own), each run has its own.
    """
    task = _Task(template)

    def one(own: State, *rest: Any) -> Any:
        inside = {f"module.{name}": value for name, value in own.items()}
        return functional_call(task, inside, (function, *rest))

    if len(next(iter(state.values()))) == 1:
        alone = one(*tree_map(lambda leaf: leaf[0], (state, *args)))
        return tree_map(lambda leaf: leaf[None], alone)
    return vmap(one, randomness="different")(state, *args)
