"""Run a function of tensors many times without paying for its launches, whatever it does.

On the CPU it is a plain call. On CUDA the function is recorded once as a graph and replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

WARM_UP = 1
"""Calls before recording: what is made on first use must exist by then."""


@final
class CapturedGraph:
    """A function that works by changing tensors in place and never waits for the device.

    `inert` are arguments for which it changes nothing: warming up calls it with them. Later calls
    must give arguments of the same shapes.
    """

    def __init__(self, function: Callable[..., None], *inert: Tensor) -> None:
        self._function = function
        self._inputs = [value.clone() for value in inert]
        self._graph: torch.cuda.CUDAGraph | None = None
        if inert[0].is_cuda:
            self._graph = self._record()

    def __call__(self, *arguments: Tensor) -> None:
        """Call, or copy the arguments in and replay."""
        if self._graph is None:
            self._function(*arguments)
            return
        for kept, given in zip(self._inputs, arguments, strict=True):
            kept.copy_(given)
        self._graph.replay()

    def _record(self) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._function(*self._inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._function(*self._inputs)
        return graph
