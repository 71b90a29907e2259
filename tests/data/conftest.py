"""Fixtures: small sources in official layouts, and the real ones if $DIPS_DATA is set."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dips.data.interactions import Interactions
from dips.data.readers.layouts import read_source
from dips.data.readers.source import open_source

Files = dict[str, str | bytes]


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[Files], Path]:
    """Write files into a fresh directory."""

    def make(files: Files, name: str = "source") -> Path:
        root = tmp_path / name
        for file, content in files.items():
            path = root / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return root

    return make


@pytest.fixture
def packed(tmp_path: Path) -> Callable[[Files], Path]:
    """Write files into a zip, below a directory as in official zips."""

    def make(files: Files) -> Path:
        path = tmp_path / "packed.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for file, content in files.items():
                archive.writestr(f"inside/{file}", content)
        return path

    return make


@pytest.fixture
def read() -> Callable[..., Interactions]:
    """Read a path in a layout, named or recognised."""

    def make(path: Path, layout: str | None = None, **kwargs: object) -> Interactions:
        with open_source(path) as source:
            return read_source(source, layout, **kwargs)  # type: ignore[arg-type]

    return make


@pytest.fixture
def real_data() -> Path:
    """The directory of real datasets."""
    if "DIPS_DATA" not in os.environ:
        pytest.skip("real data is not here: set $DIPS_DATA")
    return Path(os.environ["DIPS_DATA"])


def events(data: Interactions) -> dict[str, list[tuple[object, ...]]]:
    """Return the events of each user with original ids."""
    found = {}
    for user in range(data.users):
        rows = range(*data.events(user).indices(len(data.item)))
        found[data.user_id(user)] = [
            tuple(
                value
                for value in (
                    data.item_ids[int(data.item[row])],
                    None if data.rating is None else float(data.rating[row]),
                    None if data.time is None else int(data.time[row]),
                )
                if value is not None
            )
            for row in rows
        ]
    return found


@pytest.fixture(name="events")
def events_fixture() -> Callable[[Interactions], dict[str, list[tuple[object, ...]]]]:
    return events
