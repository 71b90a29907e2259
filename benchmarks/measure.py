"""Clocks, peak memory, child processes and tables of the benchmarks.

Needs torch and the standard library only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dips.data import prepared
from dips.data.interactions import Interactions


class Took(NamedTuple):
    """Elapsed time, in seconds."""

    wall: float
    cpu: float
    """Time of all threads; independent of other processes."""

    def less(self, other: Took) -> Took:
        """Return the difference to another time, at least 0."""
        return Took(max(0.0, self.wall - other.wall), max(0.0, self.cpu - other.cpu))


def best(found: Iterable[Took]) -> Took:
    """Return the minimum of each clock."""
    return Took(*map(min, zip(*found, strict=True)))


class Clock:
    """Measures the time since its creation, after synchronising the device."""

    def __init__(self, device: str) -> None:
        self._cuda = device.startswith("cuda")
        self._began = self._now()

    def took(self) -> Took:
        return self._now().less(self._began)

    def _now(self) -> Took:
        if self._cuda:
            torch.cuda.synchronize()
        return Took(time.perf_counter(), time.process_time())


def timed(device: str, action: Callable[[], object], times: int = 1) -> Took:
    """Return the minimum time of several calls of an action."""
    found = []
    for _ in range(times):
        clock = Clock(device)
        action()
        found.append(clock.took())
    return best(found)


class Peak:
    """Peak memory since creation: of the GPU, or of this process above its start."""

    def __init__(self, device: str) -> None:
        self._cuda = device.startswith("cuda")
        self._baseline = kilobytes("VmRSS")
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()

    def bytes(self) -> int:
        if self._cuda:
            return int(torch.cuda.max_memory_allocated())
        return (kilobytes("VmHWM") - self._baseline) * 1024


def kilobytes(field: str) -> int:
    """Return a field of /proc/self/status; ru_maxrss would include the parent's peak."""
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{field}:")[1].split()[0])


def in_child(module: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """Run a job in a child process and return the JSON object of its last output line.

    The module is called with `--child JOB`. Its other output goes to standard error. A child has
    its own peak memory.
    """
    command = [sys.executable, "-m", module, "--child", json.dumps(job)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{module}: the child with {json.dumps(job)} failed, see above")
    *log, last = done.stdout.splitlines()
    for line in log:
        print(line, file=sys.stderr)
    result: dict[str, Any] = json.loads(last)
    return result


@contextmanager
def on_file(spec: str | None, make: Callable[[], Interactions]) -> Iterator[Path]:
    """Yield a prepared file: the given one, or one with the named or the made data."""
    if spec and spec.endswith(prepared.SUFFIX):
        yield Path(spec)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"data{prepared.SUFFIX}"
        prepared.write(_named(spec) if spec else make(), path)
        yield path


def _named(spec: str) -> Interactions:
    from dips.data.catalog import open_data  # reads tables, which takes polars

    return open_data(spec)


def data_by_default(name: str) -> str | None:
    """Return the name of a data set if $DIPS_DATA has it."""
    folder = os.environ.get("DIPS_DATA")
    return name if folder and (Path(folder) / f"{name}.parquet").is_file() else None


def print_json(results: Mapping[str, Any], file: Path | None) -> None:
    """Print results as one JSON line, and write them to a file if one is given."""
    if file is not None:
        file.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an aligned Markdown table."""
    wide = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *rest = (
            (cell.ljust if place == 0 else cell.rjust)(width)
            for place, (cell, width) in enumerate(zip(cells, wide, strict=True))
        )
        return f"| {' | '.join([first, *rest])} |"

    rule = [":" + "-" * (wide[0] - 1), *("-" * (width - 1) + ":" for width in wide[1:])]
    return "\n".join([line(head), line(rule), *map(line, rows)])
