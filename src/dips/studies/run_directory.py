"""Read and write run directories.

config.json, metrics.json, model.safetensors, log.jsonl, split.csv, test_users.csv, curve.png. No
pickle anywhere. metrics.json is written last: a directory that has it is a finished run.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dips.data.atomic_write import atomic_write
from dips.data.catalog import open_data, read_data
from dips.data.interactions import Interactions
from dips.data.predefined_split import open_predefined_split
from dips.data.readers.columns import ColumnNames
from dips.data.side_information import event_column_names
from dips.errors import DataError, RunError
from dips.evaluation.comparison import UserSums
from dips.evaluation.progressive import Scores
from dips.model.trained_model import TrainedModel, open_model
from dips.plugins.consent import check_consent
from dips.policy.registry import is_own_policy
from dips.recommender.registry import is_own_recommender
from dips.report.figures import training_curve
from dips.studies.checks import split
from dips.studies.result import RunResult
from dips.training import checkpoint
from dips.training.config import TrainConfig
from dips.training.resolve import Resolved

PARTS = ("train", "valid", "test")
Source = str | list[str]
"""Name of the data as the user gave it: one name, or one each for train, valid and test."""


def prepare_directory(
    directory: Path, config: TrainConfig, source: Source, *, resume: bool
) -> None:
    """Create the directory of a new or resumed run and write its config.json.

    Args:
        directory: The run directory.
        config: Settings of the run.
        source: Name of the data as the user gave it.
        resume: Whether an interrupted run may be continued.

    Raises:
        RunError: If the directory holds a finished run, an interrupted run and `resume` is false,
            or a run with other settings.
    """
    if is_finished(directory):
        raise RunError(f"{directory} is a finished run: choose another --out, or remove it")
    begun = checkpoint.exists(directory)
    if begun and not resume:
        raise RunError(
            f"{directory} holds an interrupted run: continue it with --resume, or remove it"
        )
    wanted = {**config.to_dict(), "data": source}
    if begun and (other := changed_settings(read_config(directory), wanted)):
        raise RunError(
            f"{directory} was started with other settings ({other}): resume with those of its "
            "config.json"
        )
    write_json(config_document(config.to_dict(), source), directory / "config.json")
    for part in directory.glob("*.part"):  # unfinished files of a killed run
        part.unlink()


def changed_settings(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return the names of the differing settings, of those that affect results."""
    free = ("device", "max_seconds")
    return ", ".join(n for n in wanted if found.get(n) != wanted[n] and n not in free)


def write_run(result: RunResult, directory: Path, *, source: Source, curve: bool = True) -> None:
    """Write a finished run; metrics.json is written last.

    Args:
        result: Result of the run.
        directory: The run directory.
        source: Name of the data as the user gave it.
        curve: Whether to draw curve.png.
    """
    document = config_document(result.config.to_dict(), source, result.resolved)
    write_json(document, directory / "config.json")
    result.trained.save(directory)
    lines = "".join(json.dumps(line) + "\n" for line in result.history)
    with atomic_write(directory / "log.jsonl") as part:
        part.write_text(lines)
    _write_split(result.parts, directory / "split.csv")
    if result.test is not None:
        write_user_sums(result.test, result.parts[2], directory / "test_users.csv")
    if curve:
        with atomic_write(directory / "curve.png") as part:
            training_curve(result.history, part)
    write_json(result.metrics(), directory / "metrics.json")


def read_metrics(directory: Path) -> dict[str, Any]:
    """Return the content of metrics.json."""
    return read_json(directory / "metrics.json")


def config_document(
    asked: Mapping[str, Any], source: Source, resolved: Resolved | None = None
) -> dict[str, Any]:
    """Return the content of config.json: the source, the settings as asked, and as resolved.

    Args:
        asked: Settings as asked, by name; a value of None is decided by the data.
        source: Name of the data as the user gave it.
        resolved: All settings, and why the open ones were decided so. None before training.
    """
    document: dict[str, Any] = {"data": source, "asked": dict(asked)}
    if resolved is not None:
        document["resolved"] = resolved.config.to_dict()
        document["decisions"] = [
            {"setting": one.setting, "value": document["resolved"][one.setting], "why": one.reason}
            for one in resolved.decisions
        ]
    return document


def read_config(directory: Path) -> dict[str, Any]:
    """Return the settings of config.json as asked, and `data`, the source.

    Raises:
        RunError: The run was written by version 0.1.
    """
    document = read_json(directory / "config.json")
    if "asked" not in document:
        raise RunError(f"{directory} was written by dips 0.1: train the run again")
    return {**document["asked"], "data": document["data"]}


def read_settings(directory: Path) -> TrainConfig:
    """Return the settings of a run as asked."""
    asked = read_config(directory)
    del asked["data"]
    return TrainConfig.of(**asked)


def read_part(directory: Path, part: str) -> Interactions:
    """Read the users of a part of a run from the run's source.

    Args:
        directory: The run directory.
        part: train, valid or test.

    Raises:
        DataError: If the source cannot be opened or has changed.
    """
    source, settings = read_config(directory)["data"], read_settings(directory)
    members = read_split(directory)[part]
    columns = ColumnNames(side=event_column_names(settings.model.side))
    with _hint_moved("DATA"):
        if isinstance(source, list):
            read = partial(read_data, columns=columns)
            found = open_predefined_split(*source, read=read)[PARTS.index(part)]
        elif settings.training.split != "users":
            found = split(open_data(source, columns=columns), settings)[PARTS.index(part)]
        else:
            data = open_data(source, columns=columns)
            found = data.select([u for u in range(data.users) if data.user_id(u) in members])
    if {found.user_id(user) for user in range(found.users)} != members:
        raise DataError(f"{found.name} is not what it was when the run was made: give data")
    return found


def read_source(directory: Path) -> list[Interactions]:
    """Read the data of a run from its source: one table, or one for each part.

    Raises:
        DataError: If the source cannot be opened.
    """
    source, settings = read_config(directory)["data"], read_settings(directory)
    columns = ColumnNames(side=event_column_names(settings.model.side))
    sources = source if isinstance(source, list) else [source]
    with _hint_moved("--data"):
        return [read_data(place, columns=columns) for place in sources]


@contextmanager
def _hint_moved(option: str) -> Iterator[None]:
    """Add to a `DataError` which option names the data if it has moved."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{error}; if the run's data has moved, give {option}") from None


def unseen_users(data: Interactions, splits: Iterable[Mapping[str, set[str]]]) -> Interactions:
    """Select the users who were neither training nor validation users of a run.

    Args:
        data: Any data; users are matched by original id.
        splits: Splits of the runs, as `read_split` returns them.

    Raises:
        DataError: If no user is left.
    """
    used = set[str]().union(*(split["train"] | split["valid"] for split in splits))
    users = [user for user in range(data.users) if data.user_id(user) not in used]
    if not users:
        raise DataError(
            f"{data.name}: all its users were in the training or validation part of this run; "
            "give other data"
        )
    return data.select(users)


def open_run(directory: Path, *, allow_plugins: bool = False) -> TrainedModel:
    """Open the trained policy and recommender of a run.

    Args:
        directory: The run directory.
        allow_plugins: Whether a user's own class that the run names is imported (`open_model`).

    Raises:
        RunError: If the directory does not exist or holds no finished run, or if a user's own
            class is not allowed.
    """
    if not directory.is_dir():
        raise RunError(f"{directory}: there is no such run directory; make one with 'dips train'")
    return open_model(directory, allow_plugins=allow_plugins)


def check_own_classes(config: TrainConfig, *, allow_plugins: bool) -> None:
    """Raise `PluginError` if the settings of a run name a user's own class that is not allowed."""
    policy, recommender = config.sketch.policy, config.model.recommender
    if is_own_policy(policy):
        check_consent("policy", policy, allowed=allow_plugins)
    if is_own_recommender(recommender):
        check_consent("recommender", recommender, allowed=allow_plugins)


def is_finished(directory: Path) -> bool:
    """Return whether a directory holds a finished run."""
    return (directory / "metrics.json").exists()


def read_split(directory: Path) -> dict[str, set[str]]:
    """Return the original user ids of the parts train, valid and test."""
    users: dict[str, set[str]] = {part: set() for part in PARTS}
    with _open(directory / "split.csv") as lines:
        for row in csv.DictReader(lines):
            users[row["part"]].add(row["user"])
    return users


def read_user_sums(directory: Path) -> UserSums:
    """Read what each test user of a run adds to the metrics."""
    with _open(directory / "test_users.csv") as lines:
        rows = list(csv.DictReader(lines))
    terms = [name for name in rows[0] if name not in ("user", "count")]
    return UserSums(
        [row["user"] for row in rows],
        np.array([float(row["count"]) for row in rows]),
        {term: np.array([float(row[term]) for row in rows]) for term in terms},
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file.

    Raises:
        RunError: If it is missing or damaged.
    """
    with _open(path) as file:
        try:
            content: dict[str, Any] = json.load(file)
        except ValueError as error:
            raise RunError(f"{path} is damaged: {error}; train the run again") from None
    return content


def write_json(value: Any, path: Path) -> None:
    """Write a JSON file atomically."""
    with atomic_write(path) as part:
        part.write_text(json.dumps(value, indent=2) + "\n")


def write_csv(header: Sequence[str], rows: Iterable[Sequence[Any]], path: Path) -> None:
    """Write a CSV file atomically."""
    with atomic_write(path) as part, part.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def _write_split(parts: Sequence[Interactions], path: Path) -> None:
    rows = [
        (part.user_id(user), name)
        for name, part in zip(PARTS, parts, strict=True)
        for user in range(part.users)
    ]
    write_csv(("user", "part"), rows, path)


def write_user_sums(scores: Scores, part: Interactions, path: Path) -> None:
    """Write what each user of a part adds to the metrics, as CSV."""
    columns = [scores.count.tolist(), *(total.tolist() for total in scores.sums.values())]
    rows = ([part.user_id(user), *values] for user, values in enumerate(zip(*columns, strict=True)))
    write_csv(("user", "count", *scores.sums), rows, path)


def _open(path: Path) -> Any:
    try:
        return path.open(newline="")
    except OSError:
        raise RunError(f"{path.parent} is not a finished run: {path.name} is missing") from None
