"""Save and restore a training state, so that a resumed run equals an uninterrupted one."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from dips.errors import RunError
from dips.policy.settings import BEST_START, starts
from dips.training.state import Progress, TrainingState

FILE = "checkpoint.safetensors"


def of_start(directory: Path, name: str) -> Path:
    """Return where the checkpoint of a further initial policy is: a subdirectory of the run's."""
    return directory / f"start-{name}"


def places(directory: Path) -> list[Path]:
    """Return all directories in which a run may have checkpoints."""
    return [directory, *(of_start(directory, name) for name in starts(BEST_START))]


def exists(directory: Path) -> bool:
    """Return whether a run has a checkpoint, from any initial policy."""
    return any((place / FILE).exists() for place in places(directory))


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
    """Delete the checkpoints of a finished run, whole or not."""
    for place in places(directory):
        for file in place.glob(f"{FILE}*"):
            file.unlink()
        if place != directory and place.is_dir() and not any(place.iterdir()):
            place.rmdir()
