"""Replay a function of tensors as a CUDA graph, to save its kernel launches.

Knows nothing about what the function computes. On a CPU it is a plain call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

WARMUP_CALLS = 1
"""Calls before the capture: torch allocates lazily, and a capture must not allocate."""


@final
class CapturedGraph:
    """A function that changes tensors in place, captured once and replayed on CUDA.

    The function must not synchronise with the device.

    Args:
        function: Takes tensors, returns nothing, and changes other tensors in place.
        *no_op_inputs: Arguments with which the function changes nothing. They are used for the
            warm-up and the capture. Later calls need arguments of the same shapes.
    """

    def __init__(self, function: Callable[..., None], *no_op_inputs: Tensor) -> None:
        self._function = function
        self._inputs = [value.clone() for value in no_op_inputs]
        self._graph: torch.cuda.CUDAGraph | None = None
        if no_op_inputs[0].is_cuda:
            self._graph = self._capture()

    def __call__(self, *arguments: Tensor) -> None:
        """Call the function; on CUDA, copy the arguments into the graph's inputs and replay it.

        Args:
            *arguments: As many tensors as `no_op_inputs`, of the same shapes.
        """
        if self._graph is None:
            self._function(*arguments)
            return
        for static, argument in zip(self._inputs, arguments, strict=True):
            static.copy_(argument)
        self._graph.replay()

    def _capture(self) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP_CALLS):
                self._function(*self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._function(*self._inputs)
        return graph
