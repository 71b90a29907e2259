"""What docs/extending.md says is so: its modules are written, and its Python and shell are run."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from dips.cli.main import main

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, flags=re.S)


def run_python(code: str, folder: Path) -> None:
    """Run a block; one that begins with a file's name is that file, too."""
    if named := re.match(r"# (\w+\.py)\n", code):
        (folder / named[1]).write_text(code)
    exec(compile(code, "docs/extending.md", "exec"), {"__name__": "extending"})


def run_shell(line: str) -> None:
    """Run a command in this process."""
    program, *words = shlex.split(line)
    assert program == "dips"
    with pytest.raises(SystemExit) as left:
        main(words)
    assert not left.value.code, line


def test_every_block_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("DIPS_CACHE", str(tmp_path / "cache"))
    before = set(sys.modules)
    assert {language for language, _ in BLOCKS} == {"python", "sh"}
    for language, code in BLOCKS:
        if language == "python":
            run_python(code, tmp_path)
        else:
            for line in code.splitlines():
                run_shell(line)
    made = {path.stem for path in tmp_path.glob("*.py")}
    assert made == {"loud", "taste", "bounded", "check"}
    assert (tmp_path / "results" / "figure.png").exists()
    for name in made & (set(sys.modules) - before):
        sys.modules.pop(name)


def test_examples_are_short() -> None:
    """A class of one's own is a few lines."""
    lines = {}
    for _, code in BLOCKS:
        if found := re.search(r"^class (\w+).*?\Z", code, flags=re.S | re.M):
            lines[found[1]] = sum(bool(line.strip()) for line in found[0].splitlines())
    assert lines["Loudest"] <= 6
    assert lines["Taste"] <= 12
    assert lines["Bounded"] <= 12


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_the_page_is_found(page: str) -> None:
    assert "(docs/extending.md)" in (ROOT / page).read_text()
