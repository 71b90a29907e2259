"""What the README says is so: its Python runs, its tree is the tree, its policies exist."""

import re
from pathlib import Path

from dips.policy.registry import POLICIES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_python_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    names: dict[str, object] = {}
    quick = code.replace('dips.load("synthetic")', 'dips.load("planted")')
    exec(compile(quick, "README.md", "exec"), names)
    assert names["table"].summary[0]["n"] == 2  # type: ignore[attr-defined]


def test_the_tree_names_every_file() -> None:
    tree = README.split("## The tree")[1]
    for path in sorted((ROOT / "src" / "dips").rglob("*.py")):
        if path.name != "__init__.py":
            assert re.search(rf"^ +{re.escape(path.name)} ", tree, flags=re.M), path


def test_every_policy_is_explained() -> None:
    box = README.split("## What is in the box")[1].split("## The tree")[0]
    for name in POLICIES:
        assert f"`{name}" in box
