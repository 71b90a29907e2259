import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dips

ROOT = Path(__file__).parent.parent
PUBLIC = [
    "Candidates", "DipsError", "Interactions", "Network", "Policy", "Recommender", "TrainConfig",
    "TrainedModel", "compare", "evaluate", "gradients", "load", "open_keeper", "open_reader",
    "paper", "session", "sketches", "train", "transfer",
]  # fmt: skip


def fresh(code):
    """What a new interpreter prints as JSON."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_the_surface_is_short_and_sorted():
    assert dips.__all__ == PUBLIC == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_resolves_to_something_documented(name):
    assert getattr(dips, name).__doc__


def test_no_name_is_also_a_module():
    """Importing a module would put it in the place of the function."""
    assert not set(PUBLIC) & {module.name for module in pkgutil.iter_modules(dips.__path__)}


def test_an_unknown_name_is_no_attribute():
    with pytest.raises(AttributeError, match="no attribute 'predict'"):
        _ = dips.predict


def test_nothing_else_is_public():
    code = "import json, dips; print(json.dumps([n for n in dir(dips) if not n.startswith('_')]))"
    assert set(fresh(code)) <= {*PUBLIC, "TYPE_CHECKING", "Any", "import_module"}


def test_importing_dips_does_not_import_torch():
    code = "import json, sys, dips; print(json.dumps(list(sys.modules)))"
    assert not {"torch", "numpy", "polars"} & set(fresh(code))


def test_the_core_needs_no_tables_no_command_line_and_no_figures():
    code = (
        "import json, sys, dips.stream.users, dips.rollout.rollout, "
        "dips.model.trained_model, dips.training.trainer, dips.evaluation.progressive; "
        "print(json.dumps(list(sys.modules)))"
    )
    loaded = set(fresh(code))
    assert "torch" in loaded
    assert not {"polars", "typer", "rich", "matplotlib"} & loaded


def test_a_single_run_does_not_import_the_torch_compiler():
    """Its import takes seconds."""
    code = (
        "import json, sys, dips; from dips.data.synthetic import stream; "
        "parts = stream(users=20, events=12).split_users(0.6, 0.2, 0.2, seed=0); "
        "dips.train(*parts[:2], policy='learned', size=2, epochs=1); "
        "print(json.dumps(list(sys.modules)))"
    )
    assert "torch._dynamo" not in fresh(code)


def test_the_newest_release_in_the_changelog_is_this_version():
    """Only a section of unreleased changes may stand above it."""
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    headings = [line for line in lines if line.startswith("## ")]
    released = [line for line in headings if not line.startswith("## Unreleased")]
    assert headings.index(released[0]) <= 1
    assert re.match(rf"## \[?{re.escape(dips.__version__)}\b", released[0]), released[0]
