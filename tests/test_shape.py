"""The shape of the house: no file grows past what can be read at a sitting."""

from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_files_stay_short() -> None:
    for path in [*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py")]:
        assert len(path.read_text().splitlines()) <= 350, path


def test_no_drawers() -> None:
    names = {path.stem for path in ROOT.glob("src/**/*.py")}
    assert not names & {"utils", "common", "helpers", "misc"}
