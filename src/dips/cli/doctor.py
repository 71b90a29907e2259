"""`dips doctor`: print packages, threads, GPU, compiled kernels and data, and what is missing."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dips.cli.origin import NEEDED, environment, installed
from dips.cli.screen import print_json
from dips.data import catalog


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print only one JSON object.")] = False,
) -> None:
    """Print packages, threads, GPU, compiled kernels and data.

    Exits with 2 if a package is missing.
    """
    facts = _facts()
    if as_json:
        print_json(facts)
    else:
        table = Table("what", "found", title="dips doctor", title_justify="left")
        for name, value in facts.items():
            table.add_row(
                name, ", ".join(value) or "nothing" if isinstance(value, list) else str(value)
            )
        Console().print(table)
    if facts["missing"]:
        raise typer.Exit(2)


def _facts() -> dict[str, Any]:
    """Return the environment, the data directories, and available and missing things, by name."""
    missing = [f"{name} (pip install {name})" for name in NEEDED if installed(name) is None]
    packages = environment()
    del packages["cuda"]  # `GPU` says more
    return {
        **packages,
        **_threads(),
        **_gpu(),
        **_kernels(),
        "data directories": [str(path) for path in catalog.searched_directories()],
        "available data": [name for name in catalog.CATALOG if catalog.is_available(name)],
        "missing": missing,
    }


def _threads() -> dict[str, Any]:
    """Return the cores of this process, and the variables that limit threads."""
    variables = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")
    has_affinity = hasattr(os, "sched_getaffinity")
    return {
        "cores of this process": len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count(),
        **{name: os.environ.get(name, "not set") for name in variables},
    }


def _gpu() -> dict[str, Any]:
    """Return name and memory of each GPU, and the version of Triton, which compiles for it."""
    import torch

    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "GPU": [f"{gpu.name} ({gpu.total_memory / 2**30:.0f} GiB)" for gpu in found],
        "triton": installed("triton") or "not installed",
    }


def _kernels() -> dict[str, Any]:
    """Return where compiled kernels are kept, and whether they are there."""
    from dips.kernels import dispatch

    directory = dispatch.cache_directory()
    return {
        "kernel directory": directory or "none is writable: set DIPS_CACHE",
        "compiled kernels": dispatch.compiled_kernels(),
    }
