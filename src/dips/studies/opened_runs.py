"""Open several runs of one data set, with a stream of users that none of them was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dips.data.interactions import Interactions
from dips.errors import RunError
from dips.model.trained_model import TrainedModel
from dips.stream.users import EventColumns, Stream, make_stream
from dips.studies import run_directory
from dips.studies.checks import device_of
from dips.studies.sketches import reindex_items
from dips.training.config import TrainConfig


def open_runs(
    runs: Sequence[Path],
    data: Interactions | None,
    device: str | None,
    *,
    allow_plugins: bool = False,
) -> tuple[list[TrainedModel], Interactions, Stream]:
    """Open runs with the same items and task, and a stream of users to score them on.

    Args:
        runs: Run directories.
        data: The users to score; by default the test users of the first run. Training and
            validation users of any run are left out.
        device: cpu or cuda; None: cuda if there is a GPU.
        allow_plugins: Whether users' own classes that the runs name are imported.

    Returns:
        The trained models, the users, and their stream.

    Raises:
        RunError: If the runs have different items or tasks.
        DataError: If no user is left.
    """
    models = [run_directory.open_run(run, allow_plugins=allow_plugins) for run in runs]
    first = models[0]
    for run, other in zip(runs, models, strict=True):
        same = (list(other.item_ids), other.side, other.explicit)
        if same != (list(first.item_ids), first.side, first.explicit):
            raise RunError(
                f"{run} has other items or another task than {runs[0]}: train both on one data set"
            )
    splits = [run_directory.read_split(run) for run in runs]
    if data is None:
        whole = run_directory.read_part(runs[0], "test")
        others = [split for split in splits if split != splits[0]]
        part = run_directory.unseen_users(whole, others) if others else whole
    else:
        part = run_directory.unseen_users(data, splits)
    part = reindex_items(first, part)
    columns = EventColumns.of(part, device_of(TrainConfig.of(device=device)), first.side)
    return models, part, make_stream([part], columns)


def run_labels(runs: Sequence[Path]) -> list[str]:
    """Return distinct labels of runs: policies, else directory names, else paths."""
    policies = [requested_policy(run) for run in runs]
    folders = [run.resolve().name for run in runs]
    for names in (policies, folders):
        if len(set(names)) == len(names):
            return names
    return [str(run) for run in runs]


def requested_policy(run: Path) -> str:
    """Return the policy that a run was asked for; a baseline may have been kept instead."""
    return run_directory.read_settings(run).sketch.policy
