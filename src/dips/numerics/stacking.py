"""Stacked modules: several runs of one architecture, with a leading axis of runs.

Parameters and buffers of all runs are stacked, as `torch.func.stack_module_state` does. A
function of a module is then evaluated for every run at once by `torch.func.vmap`. Knows nothing
about what the modules compute.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_map

StateDict = dict[str, Tensor]
"""Parameters and buffers by name."""
Module = TypeVar("Module", bound=nn.Module)


def strip_prefix(prefix: str, tensors: StateDict) -> StateDict:
    """Return the tensors whose names start with the prefix, named without it.

    >>> strip_prefix("policy.", {"policy.bias": torch.ones(1), "other": torch.ones(1)})
    {'bias': tensor([1.])}
    """
    return {
        name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)
    }


class StackedModules(Generic[Module]):
    """Parameters and buffers of all runs, and a template module that computes with them.

    Args:
        template: A module of the architecture; its own parameters are not used.
        state: Parameters and buffers, each [runs, ...].
    """

    def __init__(self, template: Module, state: StateDict) -> None:
        self.template = template
        self.state = state

    @classmethod
    def of(cls, modules: Sequence[Module], device: torch.device | str = "cpu") -> Self:
        """Stack modules of one architecture.

        Args:
            modules: One module per run, all with parameters of the same names and shapes.
            device: Where the stacked tensors live.

        Returns:
            The stacked modules; the tensors are detached copies.
        """
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
        """Number of runs."""
        return len(next(iter(self.state.values())))

    @property
    def trainable(self) -> list[str]:
        """Names of the parameters, without the buffers."""
        return [name for name, _ in self.template.named_parameters()]

    def select(self, runs: Sequence[int]) -> Self:
        """Return the stack of some runs, for reading only: a single run is expanded, not copied.

        Args:
            runs: Indices of runs; an index may repeat.
        """
        if self.runs == 1:
            same = {name: v.expand(len(runs), *v.shape[1:]) for name, v in self.state.items()}
            return type(self)(self.template, same)
        index = torch.tensor(list(runs), device=next(iter(self.state.values())).device)
        return type(self)(self.template, {name: v[index] for name, v in self.state.items()})

    def one(self, run: int) -> Module:
        """Return the module of one run, as a copy on the CPU.

        Args:
            run: Index of the run.
        """
        module = copy.deepcopy(self.template).cpu()
        saved = module.state_dict().keys()  # without buffers that can be computed again
        module.load_state_dict({name: self.state[name][run].cpu() for name in saved})
        return module


class _CallWith(nn.Module):
    """A module whose `forward` calls a function of another: `functional_call` needs a forward."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the function with the module and the arguments."""
        return function(self.module, *args)


def call_stacked(
    template: nn.Module, state: StateDict, function: Callable[..., Any], *args: Any
) -> Any:
    """Evaluate `function(module, *args)` for every run. Differentiable in `state`.

    A single run is called without `vmap`. Random numbers that a module takes from torch, such as
    dropout, differ between the runs.

    Args:
        template: A module of the architecture.
        state: Parameters and buffers, each [runs, ...].
        function: Takes a module and the arguments of one run.
        *args: Pytrees of tensors, each [runs, ...].

    Returns:
        The result of the function, a pytree of tensors [runs, ...].
    """
    wrapped = _CallWith(template)

    def call_run(run_state: StateDict, *run_args: Any) -> Any:
        parameters = {f"module.{name}": value for name, value in run_state.items()}
        return functional_call(wrapped, parameters, (function, *run_args))

    if len(next(iter(state.values()))) == 1:
        result = call_run(*tree_map(lambda leaf: leaf[0], (state, *args)))
        return tree_map(lambda leaf: leaf[None], result)
    return vmap(call_run, randomness="different")(state, *args)
