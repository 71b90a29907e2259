"""A captured graph calls its function; on CUDA it replays it with new inputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dips.numerics.cuda_graph import CapturedGraph

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
def test_every_call_uses_its_own_arguments(device: str) -> None:
    total = torch.zeros(3, device=device)

    def add(value: Tensor, scale: Tensor) -> None:
        total.add_(value * scale)

    zero = torch.zeros(3, device=device)
    graph = CapturedGraph(add, zero, zero)
    assert not total.any()
    graph(torch.ones(3, device=device), torch.full((3,), 2.0, device=device))
    graph(torch.ones(3, device=device), torch.full((3,), 5.0, device=device))
    assert total.tolist() == [7.0, 7.0, 7.0]
