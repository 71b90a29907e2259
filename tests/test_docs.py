"""Documents are true: examples run, links lead somewhere, files and flags that they name exist."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
import typer

from dips.cli.main import app, main

ROOT = Path(__file__).parents[1]
EXTENDING = (ROOT / "docs" / "extending.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", EXTENDING, flags=re.S)
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in (".", "docs", "results", "benchmarks")
    for path in (ROOT / folder).glob("*.md")
)
CURRENT = [page for page in PAGES if page not in ("LOG.md", "CHANGELOG.md")]
"""Pages that describe the code as it is today."""


def run_python(code: str, folder: Path) -> None:
    """Run a block. A block that begins with a file's name is written to that file too."""
    if named := re.match(r"# (\w+\.py)\n", code):
        (folder / named[1]).write_text(code)
    exec(compile(code, "docs/extending.md", "exec"), {"__name__": "extending"})


def run_shell(line: str) -> None:
    """Run a command in this process; the directory is on the import path already."""
    program, *words = shlex.split(line)
    if (program, *words) == ("export", "PYTHONPATH=."):
        return
    assert program == "dips"
    with pytest.raises(SystemExit) as left:
        main(words)
    assert not left.value.code, line


def test_every_block_of_extending_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    assert {language for language, _ in BLOCKS} == {"python", "sh"}
    for language, code in BLOCKS:
        if language == "python":
            run_python(code, tmp_path)
        else:
            for line in code.splitlines():
                run_shell(line)
    made = {path.stem for path in tmp_path.glob("*.py")}
    assert len(made) >= 3  # a policy, a policy that learns, a recommender
    assert (tmp_path / "results" / "figure.png").exists()
    for name in made & (set(sys.modules) - before):
        sys.modules.pop(name)


def test_a_class_of_your_own_is_a_few_lines() -> None:
    lengths = [
        sum(bool(line.strip()) for line in found[0].splitlines())
        for _, code in BLOCKS
        if (found := re.search(r"^class (\w+).*?\Z", code, flags=re.S | re.M))
    ]
    assert len(lengths) >= 3
    assert min(lengths) <= 6
    assert max(lengths) <= 12


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text()):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        found = (ROOT / page).parent / name if name else ROOT / page
        assert found.exists(), target
        if anchor:
            assert anchor in anchors(found), target


@pytest.mark.parametrize("page", CURRENT)
def test_files_that_a_page_names_exist(page: str) -> None:
    """A name like `credit/queue.py` is a file of the package or of the repository."""
    for name in re.findall(r"`([\w/]+/\w+\.(?:py|png|csv|json))`", (ROOT / page).read_text()):
        roots = (ROOT, ROOT / "src" / "dips", ROOT / "src" / "dips" / "serve", ROOT / "results")
        made = name.startswith(("paper/", "runs/", "OUT/"))  # by a command of the page
        assert made or any((root / name).exists() for root in roots), name


def cited(path: Path) -> set[int]:
    """Return the numbers of the paper's equations that a file cites."""
    found: set[int] = set()
    for text in re.findall(r"Eqs?\. ?(\d+(?:(?:-|, | and )\d+)*)", path.read_text()):
        numbers = [int(number) for number in re.findall(r"\d+", text)]
        found |= set(range(numbers[0], numbers[-1] + 1)) if "-" in text else set(numbers)
    return found


def test_files_in_the_table_of_equations_cite_them() -> None:
    rows = re.findall(r"^\| Eq\. (\d+) \|.*\|(.*)\|$", (ROOT / "ARCHITECTURE.md").read_text(), re.M)
    assert [int(number) for number, _ in rows] == list(range(1, 12))
    for number, files in rows:
        for name in re.findall(r"`([\w/]+\.py)`", files):
            assert int(number) in cited(ROOT / "src" / "dips" / name), (number, name)


def options(words: list[str]) -> set[str]:
    """Return the flags of the command that words begin with."""
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):  # a group
        command = command.commands[words.pop(0)]
    return {name for item in command.params for name in (*item.opts, *item.secondary_opts)}


@pytest.mark.parametrize("page", ["README.md", "docs/howto.md", "docs/production.md"])
def test_flags_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    lines = re.findall(r"^(?: {4})?.*?\b(?<!-m )dips ((?:[a-z]+) .*)$", text, flags=re.M)
    lines = [line for line in lines if re.match(r"[a-z]+ .*--", line) and "|" not in line]
    assert lines
    for line in lines:
        words = shlex.split(line, comments=True)
        known = options(words)
        for word in words:
            if word.startswith("--"):
                assert word in known, line


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_the_page_on_extending_is_found(page: str) -> None:
    assert "(docs/extending.md)" in (ROOT / page).read_text()
