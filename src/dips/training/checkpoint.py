"""Save and restore a training state, so that a resumed run equals an uninterrupted one."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from dips.errors import RunError
from dips.training.state import Progress, TrainingState

FILE = "checkpoint.safetensors"
START = "start-{}"
"""Subdirectory with the checkpoint of a further initial policy, by its name."""


def save(state: TrainingState, directory: Path) -> None:
    """Write a checkpoint. The file is complete or absent at any time."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.cpu().contiguous() for name, value in state.tensors().items()}
    about = {"dips": json.dumps(dataclasses.asdict(state.progress))}
    part = directory / f"{FILE}.{os.getpid()}.part"
    save_file(tensors, part, metadata=about)
    part.replace(directory / FILE)


def load(state: TrainingState, directory: Path) -> bool:
    """Restore a checkpoint if there is one.

    Returns:
        Whether there was one.

    Raises:
        RunError: The checkpoint belongs to other settings.
    """
    path = directory / FILE
    if not path.exists():
        return False
    try:
        with safe_open(path, framework="pt") as file:
            progress = Progress(**json.loads((file.metadata() or {})["dips"]))
            state.load({name: file.get_tensor(name) for name in file.keys()}, progress)  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise RunError(
            f"{path} does not fit this run ({error}): resume with the settings it was started "
            "with, or remove it to start again"
        ) from None
    return True


def remove(directory: Path) -> None:
    """Delete the checkpoint of a finished run, and those of its further starts."""
    (directory / FILE).unlink(missing_ok=True)
    for further in directory.glob(START.format("*")):
        shutil.rmtree(further)
