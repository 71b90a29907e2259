"""The shape of the package: files are named by what they are for."""

from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_no_file_is_named_after_nothing() -> None:
    names = {path.stem for path in ROOT.glob("src/**/*.py")}
    assert not names & {"utils", "common", "helpers", "misc"}
