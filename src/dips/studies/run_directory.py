"""Run directories: everything that a run leaves behind, in files that people and programs can read.

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

from dips.data.atomic import written
from dips.data.catalog import open_data, read_data
from dips.data.columns import Columns
from dips.data.interactions import Interactions
from dips.data.parts import open_parts
from dips.data.side_information import columns_in
from dips.errors import DataError, RunError
from dips.evaluation.comparison import UserSums
from dips.evaluation.progressive import Scores
from dips.model.trained_model import TrainedModel, open_model
from dips.report.figures import training_curve
from dips.studies.checks import split
from dips.studies.result import RunResult
from dips.training import checkpoint
from dips.training.config import TrainConfig

PARTS = ("train", "valid", "test")
Source = str | list[str]
"""Where the data came from: one source, or one each for train, valid and test."""


def claim(directory: Path, config: TrainConfig, source: Source, *, resume: bool) -> None:
    """Make the directory this run's own, or say why it cannot be."""
    if is_finished(directory):
        raise RunError(f"{directory} is a finished run: choose another --out, or remove it")
    begun = (directory / checkpoint.FILE).exists()
    if begun and not resume:
        raise RunError(f"{directory} holds an interrupted run: go on with --resume, or remove it")
    wanted = {**config.to_dict(), "data": source}
    if begun and (other := differing(read_config(directory), wanted)):
        raise RunError(
            f"{directory} was started with another {other}: resume with the settings of its "
            "config.json"
        )
    write_json(wanted, directory / "config.json")
    for part in directory.glob("*.part"):  # what a killed run was writing
        part.unlink()


def differing(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """The settings in which two runs differ, of those that decide results."""
    free = ("device", "max_seconds")
    return ", ".join(n for n in wanted if found.get(n) != wanted[n] and n not in free)


def write_run(outcome: RunResult, directory: Path, *, source: Source, curve: bool = True) -> None:
    """Write a finished run; `source` is how its data was named."""
    write_json({**outcome.config.to_dict(), "data": source}, directory / "config.json")
    outcome.trained.save(directory)
    lines = "".join(json.dumps(line) + "\n" for line in outcome.history)
    with written(directory / "log.jsonl") as part:
        part.write_text(lines)
    _write_split(outcome.parts, directory / "split.csv")
    if outcome.test is not None:
        write_users(outcome.test, outcome.parts[2], directory / "test_users.csv")
    if curve:
        with written(directory / "curve.png") as part:
            training_curve(outcome.history, part)
    write_json(outcome.metrics(), directory / "metrics.json")


def read_metrics(directory: Path) -> dict[str, Any]:
    """What metrics.json says."""
    return read_json(directory / "metrics.json")


def read_config(directory: Path) -> dict[str, Any]:
    """What config.json says: the settings, and `data`, where the data came from."""
    return read_json(directory / "config.json")


def read_settings(directory: Path) -> TrainConfig:
    """The settings of a run."""
    return TrainConfig().but(
        **{name: value for name, value in read_config(directory).items() if name != "data"}
    )


def own_part(directory: Path, part: str) -> Interactions:
    """The users who made up a part of a run, from where its data came from."""
    source, settings = read_config(directory)["data"], read_settings(directory)
    members = read_split(directory)[part]
    columns = Columns(side=columns_in(settings.side))
    with _where_it_was("DATA"):
        if isinstance(source, list):
            read = partial(read_data, columns=columns)
            found = open_parts(*source, read=read)[PARTS.index(part)]
        elif settings.split == "time":
            found = split(open_data(source, columns=columns), settings)[PARTS.index(part)]
        else:
            data = open_data(source, columns=columns)
            found = data.select([u for u in range(data.users) if data.user_id(u) in members])
    if {found.user_id(user) for user in range(found.users)} != members:
        raise DataError(f"{found.name} is not what it was when the run was made: give data")
    return found


def own_data(directory: Path) -> list[Interactions]:
    """Everyone, from where a run's data came from: one table, or one for each part."""
    source, settings = read_config(directory)["data"], read_settings(directory)
    columns = Columns(side=columns_in(settings.side))
    sources = source if isinstance(source, list) else [source]
    with _where_it_was("--data"):
        return [read_data(place, columns=columns) for place in sources]


@contextmanager
def _where_it_was(option: str) -> Iterator[None]:
    """Data that cannot be opened may have moved: the sentence ends in how to say where it is."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{error}; where the run's data has moved, give {option}") from None


def strangers(data: Interactions, splits: Iterable[Mapping[str, set[str]]]) -> Interactions:
    """The users of data who neither trained nor validated a run; splits are of `read_split`."""
    met = set[str]().union(*(split["train"] | split["valid"] for split in splits))
    users = [user for user in range(data.users) if data.user_id(user) not in met]
    if not users:
        raise DataError(
            f"{data.name}: all of its users trained or validated this run; give other data"
        )
    return data.select(users)


def open_run(directory: Path) -> TrainedModel:
    """The trained policy and recommender of a run."""
    if not directory.is_dir():
        raise RunError(f"{directory}: there is no such run directory; make one with 'dips train'")
    return open_model(directory)


def is_finished(directory: Path) -> bool:
    """Whether a run was written to its end."""
    return (directory / "metrics.json").exists()


def read_split(directory: Path) -> dict[str, set[str]]:
    """train, valid, test -> original user ids."""
    users: dict[str, set[str]] = {part: set() for part in PARTS}
    with _opened(directory / "split.csv") as lines:
        for row in csv.DictReader(lines):
            users[row["part"]].add(row["user"])
    return users


def read_users(directory: Path) -> UserSums:
    """What each test user of the run adds to the metrics."""
    with _opened(directory / "test_users.csv") as lines:
        rows = list(csv.DictReader(lines))
    terms = [name for name in rows[0] if name not in ("user", "count")]
    return UserSums(
        [row["user"] for row in rows],
        np.array([float(row["count"]) for row in rows]),
        {term: np.array([float(row[term]) for row in rows]) for term in terms},
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON document."""
    with _opened(path) as file:
        try:
            content: dict[str, Any] = json.load(file)
        except ValueError as error:
            raise RunError(f"{path} is damaged: {error}; train the run again") from None
    return content


def write_json(value: Any, path: Path) -> None:
    """Write one JSON document, whole or not at all."""
    with written(path) as part:
        part.write_text(json.dumps(value, indent=2) + "\n")


def write_csv(header: Sequence[str], rows: Iterable[Sequence[Any]], path: Path) -> None:
    """Write a table, whole or not at all."""
    with written(path) as part, part.open("w", newline="") as file:
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


def write_users(scores: Scores, part: Interactions, path: Path) -> None:
    """Write what each user of a part adds to the metrics."""
    columns = [scores.count.tolist(), *(total.tolist() for total in scores.sums.values())]
    rows = ([part.user_id(user), *values] for user, values in enumerate(zip(*columns, strict=True)))
    write_csv(("user", "count", *scores.sums), rows, path)


def _opened(path: Path) -> Any:
    try:
        return path.open(newline="")
    except OSError:
        raise RunError(f"{path.parent} is not a finished run: {path.name} is missing") from None
