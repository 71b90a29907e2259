"""Record the command and the environment of results, in origin.json."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import dips

FILE = "origin.json"
NEEDED = ("torch", "numpy", "numba", "safetensors", "polars", "typer", "rich", "matplotlib")
_typed: ContextVar[tuple[str, ...]] = ContextVar("typed", default=())


def record_command(arguments: Sequence[str]) -> None:
    """Record the arguments after `dips`, for origin.json."""
    _typed.set(tuple(arguments))


def command() -> str:
    """Return the command as it was typed."""
    return shlex.join(["dips", *_typed.get()])


def write_origin(directory: Path) -> None:
    """Write the command and the environment of the results in a directory."""
    from dips.studies.run_directory import write_json

    write_json({"command": command(), "environment": environment()}, directory / FILE)


def environment() -> dict[str, Any]:
    """Return versions, processors and devices, as they affect results and speed."""
    import torch

    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else "none; training uses cpu"
    return {
        "dips": dips.__version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        **{name: version for name in NEEDED if (version := installed(name))},
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": cuda,
    }


def installed(name: str) -> str | None:
    """Return the version of a package; None if it is missing."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
