"""The processes that train one run together: sums over them. Knows nothing of users or models.

Gradients are not those of `nn.Module.backward`, so nothing of torch's DistributedDataParallel
would see them: they are summed here, all of a step as one flat tensor.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar, final

import torch
from torch import Tensor, distributed

from dips.errors import RunError

T = TypeVar("T")
P = ParamSpec("P")
State = dict[str, Tensor]


class ProcessGroup(ABC):
    """All processes of a run, as one of them sees them. Every one has to make the same calls."""

    rank: int
    size: int

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes files and talks."""
        return self.rank == 0

    @abstractmethod
    def sum(self, value: Tensor) -> Tensor:
        """The sum over processes; all get the same bits."""

    @abstractmethod
    def join(self, value: Tensor) -> Tensor:
        """[rows of all processes] one after the other."""

    @abstractmethod
    def mean(self, losses: Tensor, gradients: State, count: Tensor) -> tuple[Tensor, State, Tensor]:
        """Means over all predictions from the means over `count` [runs] own ones; and how many."""

    @abstractmethod
    def agree(self, value: T) -> T:
        """What the leader has."""

    @abstractmethod
    def align(self, tensors: Iterable[Tensor]) -> None:
        """Make these tensors the leader's, in place."""


@final
class SingleProcess(ProcessGroup):
    """One process: everything is as it is."""

    rank = 0
    size = 1

    def sum(self, value: Tensor) -> Tensor:
        """Itself."""
        return value

    def join(self, value: Tensor) -> Tensor:
        """Itself."""
        return value

    def mean(self, losses: Tensor, gradients: State, count: Tensor) -> tuple[Tensor, State, Tensor]:
        """As they are."""
        return losses, gradients, count

    def agree(self, value: T) -> T:
        """Itself."""
        return value

    def align(self, tensors: Iterable[Tensor]) -> None:
        """Nothing to do."""


SINGLE_PROCESS = SingleProcess()


@final
class TorchProcessGroup(ProcessGroup):
    """Several processes, each with a part of the users."""

    def __init__(self) -> None:
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    def sum(self, value: Tensor) -> Tensor:
        """Reduce a copy."""
        total = value.clone()
        _heard(distributed.all_reduce, total)
        return total

    def join(self, value: Tensor) -> Tensor:
        """Each writes its rows into its own place, zeros elsewhere, and these are summed."""
        lengths = torch.zeros(self.size, dtype=torch.int64, device=value.device)
        lengths[self.rank] = len(value)
        ends = self.sum(lengths).cumsum(0).tolist()
        rows = value.new_zeros(ends[-1], *value.shape[1:])
        rows[ends[self.rank] - len(value) : ends[self.rank]] = value
        return self.sum(rows)

    def mean(self, losses: Tensor, gradients: State, count: Tensor) -> tuple[Tensor, State, Tensor]:
        """One sum of everything, weighted by how many predictions each process has."""
        fields = [losses, *gradients.values()]
        mass = count.to(losses.dtype)[:, None]
        flat = torch.cat([field.reshape(len(count), -1) for field in fields], 1)
        total = self.sum(torch.cat([flat * mass, mass], 1))
        everyone = total[:, -1]
        widths = [field[0].numel() for field in fields]
        parts = torch.split(total[:, :-1] / everyone[:, None].clamp_min(1), widths, 1)
        shaped = [part.view_as(field) for part, field in zip(parts, fields, strict=True)]
        return shaped[0], dict(zip(gradients, shaped[1:], strict=True)), everyone

    def agree(self, value: T) -> T:
        """Let the leader tell."""
        told = [value]
        _heard(distributed.broadcast_object_list, told)
        return told[0]

    def align(self, tensors: Iterable[Tensor]) -> None:
        """Let the leader send them."""
        for tensor in tensors:
            _heard(distributed.broadcast, tensor, 0)


def _heard(call: Callable[P, object], *arguments: P.args, **named: P.kwargs) -> None:
    """Talk to the others; if one of them is gone, say so."""
    try:
        call(*arguments, **named)
    except RuntimeError as error:
        raise RunError(
            "another process of this run has ended, and what it said tells why; this one cannot go "
            f"on without it ({str(error).split('. ')[0]})"
        ) from None


@contextmanager
def gathered(device: str) -> Iterator[ProcessGroup]:
    """The processes that a launcher such as torchrun has started; alone where there is none."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
        yield SingleProcess()
        return
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        distributed.init_process_group("cpu:gloo,cuda:nccl")
    else:
        distributed.init_process_group("gloo")
    try:
        yield TorchProcessGroup()
        _heard(distributed.barrier)  # who leaves early cuts off those who still talk
    finally:
        distributed.destroy_process_group()
