"""What a process does with what others have; two real ones are in tests/training/test_shards.py."""

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
    gathered,
)


@pytest.fixture
def together(tmp_path: Path) -> Iterator[ProcessGroup]:
    """A process_group of one that talks to itself."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield TorchProcessGroup()
    distributed.destroy_process_group()


def test_without_a_launcher_one_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with gathered("cpu") as process_group:
        assert isinstance(process_group, SingleProcess)
        assert process_group.leads
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with gathered("cpu") as process_group:
        assert isinstance(process_group, SingleProcess)


def test_a_crew_of_one_is_alone(together: ProcessGroup) -> None:
    losses = torch.tensor([0.5, 2.0, 3.0])
    gradients = {"a": torch.randn(3, 4, 2), "b": torch.randn(3)}
    count = torch.tensor([4, 1, 0])
    mean, slopes, everyone = together.mean(losses, gradients, count)
    there = count > 0  # of a run without predictions there is no mean
    torch.testing.assert_close(mean[there], losses[there])
    for name, value in gradients.items():
        torch.testing.assert_close(slopes[name][there], value[there])
        assert not slopes[name][~there].any()
    assert everyone.tolist() == count.tolist()
    rows = torch.arange(6).view(3, 2)
    assert torch.equal(together.join(rows), rows)
    assert together.agree({"epoch": 3}) == SINGLE_PROCESS.agree({"epoch": 3})


def test_a_sum_leaves_what_it_was_given(
    together: ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "all_reduce", lambda value: value.mul_(2))
    own = torch.ones(2)
    assert together.sum(own).tolist() == [2.0, 2.0]
    assert own.tolist() == [1.0, 1.0]


def test_who_is_left_alone_says_so(together: ProcessGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(value: torch.Tensor) -> None:
        raise RuntimeError("Connection closed by peer. And more")

    monkeypatch.setattr(distributed, "all_reduce", gone)
    with pytest.raises(RunError, match=r"another process of this run has ended.*by peer\)$"):
        together.sum(torch.ones(1))
