"""The processes that train one run together, over `torch.distributed`.

Knows nothing about users or models. The gradients of this project do not come from
`nn.Module.backward`, so DistributedDataParallel would not see them. They are reduced here, all
gradients of a step as one flat tensor.
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
Gradients = dict[str, Tensor]


class ProcessGroup(ABC):
    """All processes of a run, seen from one of them. All must make the same calls in order.

    Every collective call raises `RunError` if another process has ended.
    """

    rank: int
    """Index of this process, from 0."""
    world_size: int
    """Number of processes."""

    @property
    def is_main(self) -> bool:
        """Whether this process has rank 0, which writes files and prints."""
        return self.rank == 0

    @abstractmethod
    def all_reduce(self, value: Tensor) -> Tensor:
        """Return the sum of `value` over all ranks. Every rank gets the same bits."""

    @abstractmethod
    def all_gather(self, value: Tensor) -> Tensor:
        """Return the rows of `value` [rows, ...] of all ranks, concatenated by rank."""

    @abstractmethod
    def mean_over_predictions(
        self, losses: Tensor, gradients: Gradients, count: Tensor
    ) -> tuple[Tensor, Gradients, Tensor]:
        """Return means over the predictions of all ranks.

        Args:
            losses: [runs] mean loss of this rank's predictions.
            gradients: Gradients of these means by parameter name, each [runs, ...].
            count: [runs] number of this rank's predictions.

        Returns:
            The mean losses, their gradients and the number of predictions of all ranks.
        """

    @abstractmethod
    def broadcast_object(self, value: T) -> T:
        """Return the value of rank 0; it is pickled between processes of the same run."""

    @abstractmethod
    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite the tensors in place with those of rank 0."""


@final
class SingleProcess(ProcessGroup):
    """One process: every collective returns its input."""

    rank = 0
    world_size = 1

    def all_reduce(self, value: Tensor) -> Tensor:
        """Return the input."""
        return value

    def all_gather(self, value: Tensor) -> Tensor:
        """Return the input."""
        return value

    def mean_over_predictions(
        self, losses: Tensor, gradients: Gradients, count: Tensor
    ) -> tuple[Tensor, Gradients, Tensor]:
        """Return the inputs."""
        return losses, gradients, count

    def broadcast_object(self, value: T) -> T:
        """Return the input."""
        return value

    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Leave the tensors unchanged."""


SINGLE_PROCESS = SingleProcess()


@final
class TorchProcessGroup(ProcessGroup):
    """The default process group of `torch.distributed`; each rank has a part of the users."""

    def __init__(self) -> None:
        self.rank, self.world_size = distributed.get_rank(), distributed.get_world_size()

    def all_reduce(self, value: Tensor) -> Tensor:
        """Return the sum over all ranks; the input stays unchanged."""
        total = value.clone()
        _collective(distributed.all_reduce, total)
        return total

    def all_gather(self, value: Tensor) -> Tensor:
        """Return the rows of all ranks: a sum of tensors that are zero outside a rank's rows."""
        lengths = torch.zeros(self.world_size, dtype=torch.int64, device=value.device)
        lengths[self.rank] = len(value)
        ends = self.all_reduce(lengths).cumsum(0).tolist()
        rows = value.new_zeros(ends[-1], *value.shape[1:])
        rows[ends[self.rank] - len(value) : ends[self.rank]] = value
        return self.all_reduce(rows)

    def mean_over_predictions(
        self, losses: Tensor, gradients: Gradients, count: Tensor
    ) -> tuple[Tensor, Gradients, Tensor]:
        """Return means weighted by each rank's number of predictions, by one all-reduce."""
        fields = [losses, *gradients.values()]
        own_count = count.to(losses.dtype)[:, None]
        flat = torch.cat([field.reshape(len(count), -1) for field in fields], 1)
        total = self.all_reduce(torch.cat([flat * own_count, own_count], 1))
        all_count = total[:, -1]
        widths = [field[0].numel() for field in fields]
        parts = torch.split(total[:, :-1] / all_count[:, None].clamp_min(1), widths, 1)
        shaped = [part.view_as(field) for part, field in zip(parts, fields, strict=True)]
        return shaped[0], dict(zip(gradients, shaped[1:], strict=True)), all_count

    def broadcast_object(self, value: T) -> T:
        """Return the value of rank 0."""
        objects = [value]
        _collective(distributed.broadcast_object_list, objects)
        return objects[0]

    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite the tensors in place with those of rank 0."""
        for tensor in tensors:
            _collective(distributed.broadcast, tensor, 0)


def _collective(call: Callable[P, object], *arguments: P.args, **named: P.kwargs) -> None:
    """Make a collective call; raise `RunError` if another process has ended."""
    try:
        call(*arguments, **named)
    except RuntimeError as error:
        raise RunError(
            "another process of this run has ended, and this one cannot continue without it: read "
            f"the error message of that process ({str(error).split('. ')[0]})"
        ) from None


@contextmanager
def open_process_group(device: str) -> Iterator[ProcessGroup]:
    """Join the process group that a launcher such as torchrun has set up.

    Args:
        device: `cpu`, `cuda` or `cuda:N`; CUDA uses NCCL, a CPU gloo.

    Yields:
        A `TorchProcessGroup`, or a `SingleProcess` without a launcher.

    Raises:
        RunError: If another process of the run has ended.
    """
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
        _collective(distributed.barrier)  # a process that leaves early breaks calls of the others
    finally:
        distributed.destroy_process_group()
