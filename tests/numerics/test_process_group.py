"""Collectives of one process; two real processes: tests/training/test_distributed.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed

from dips.errors import RunError
from dips.numerics.process_group import (
    SINGLE_PROCESS,
    ProcessGroup,
    SingleProcess,
    TorchProcessGroup,
    open_process_group,
)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ProcessGroup]:
    """A torch.distributed group with one process."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield TorchProcessGroup()
    distributed.destroy_process_group()


def test_without_a_launcher_there_is_a_single_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with open_process_group("cpu") as process_group:
        assert isinstance(process_group, SingleProcess)
        assert process_group.is_main
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with open_process_group("cpu") as process_group:
        assert isinstance(process_group, SingleProcess)


def test_a_group_of_one_process_equals_a_single_process(group: ProcessGroup) -> None:
    losses = torch.tensor([0.5, 2.0, 3.0])
    gradients = {"a": torch.randn(3, 4, 2), "b": torch.randn(3)}
    count = torch.tensor([4, 1, 0])
    mean, mean_gradients, total = group.mean_over_predictions(losses, gradients, count)
    present = count > 0  # a run without predictions has no mean
    torch.testing.assert_close(mean[present], losses[present])
    for name, value in gradients.items():
        torch.testing.assert_close(mean_gradients[name][present], value[present])
        assert not mean_gradients[name][~present].any()
    assert total.tolist() == count.tolist()
    rows = torch.arange(6).view(3, 2)
    assert torch.equal(group.all_gather(rows), rows)
    assert group.broadcast_object({"epoch": 3}) == SINGLE_PROCESS.broadcast_object({"epoch": 3})


def test_all_reduce_does_not_change_its_input(
    group: ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "all_reduce", lambda value: value.mul_(2))
    own = torch.ones(2)
    assert group.all_reduce(own).tolist() == [2.0, 2.0]
    assert own.tolist() == [1.0, 1.0]


def test_a_process_that_ended_is_reported(
    group: ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(value: torch.Tensor) -> None:
        raise RuntimeError("Connection closed by peer. And more")

    monkeypatch.setattr(distributed, "all_reduce", gone)
    with pytest.raises(RunError, match=r"another process of this run has ended.*by peer\)$"):
        group.all_reduce(torch.ones(1))
