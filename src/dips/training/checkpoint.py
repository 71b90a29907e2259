"""Stop anywhere, go on as if nothing had happened: the state of a fit as safetensors and JSON."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from dips.errors import RunError
from dips.training.state import Progress, TrainingState

FILE = "checkpoint.safetensors"


def save(fitting: TrainingState, directory: Path) -> None:
    """Write the checkpoint beside and rename it: it is there whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.cpu().contiguous() for name, value in fitting.tensors().items()}
    about = {"dips": json.dumps(dataclasses.asdict(fitting.progress))}
    part = directory / f"{FILE}.{os.getpid()}.part"
    save_file(tensors, part, metadata=about)
    part.replace(directory / FILE)


def load(fitting: TrainingState, directory: Path) -> bool:
    """Take up a checkpoint if there is one; False where there is none."""
    path = directory / FILE
    if not path.exists():
        return False
    try:
        with safe_open(path, framework="pt") as file:
            progress = Progress(**json.loads((file.metadata() or {})["dips"]))
            fitting.load({name: file.get_tensor(name) for name in file.keys()}, progress)  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise RunError(
            f"{path} does not fit this run ({error}): resume with the settings it was started "
            "with, or remove it to start again"
        ) from None
    return True


def remove(directory: Path) -> None:
    """A finished run needs none."""
    (directory / FILE).unlink(missing_ok=True)
