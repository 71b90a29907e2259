"""A class of the user's own is imported from a file's word only with consent, and if unchanged."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import dips
from dips.errors import PluginError, RunError
from dips.model.trained_model import open_model
from dips.plugins import consent
from dips.serve.keeper import open_keeper
from tests.serve.models import make_model

MODULE = "module_of_the_consent_tests"
SOURCE = """
import dips, pathlib, torch
pathlib.Path(__file__).with_name("imported").touch()

class Base(dips.Policy):
    def score(self, candidates, signals):
        return candidates.rating.double()

class Highest(Base):
    pass

class Own(dips.Recommender):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.vectors = torch.nn.Parameter(torch.zeros(self.items, len(self.user_prior)))
        assert self.vectors.sum().item() == 0  # cannot be made without memory

    def predict(self, user, items):
        return (self.vectors[items] * user[:, None]).sum(-1)

class Elsewhere:
    pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a directory on the import path that holds the module."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / f"{MODULE}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path / "path")
    yield tmp_path / "path"
    sys.modules.pop(MODULE, None)


@pytest.fixture
def run(folder, tmp_path, monkeypatch):
    """Return a model file that a process without consent is about to open."""
    make_model(f"{MODULE}:Highest", form=f"{MODULE}:Own").save(tmp_path / "run")
    monkeypatch.setattr(consent, "_named", set())
    monkeypatch.delenv(consent.VARIABLE, raising=False)
    del sys.modules[MODULE]
    (folder / "imported").unlink()
    return tmp_path / "run"


def refused(run, folder, *words, **more):
    with pytest.raises(RunError, match=".*".join(words)):
        open_model(run, **more)
    return not (folder / "imported").exists()


def test_without_consent_nothing_is_imported(run, folder, monkeypatch):
    sentence = (
        r"model\.safetensors needs .*: recommender",
        f"'{MODULE}:Own', whose code would run",
    )
    assert refused(run, folder, *sentence, "give --allow-plugins, set DIPS_ALLOW_PLUGINS=1, or in")
    for value in ("", "0", "yes"):
        monkeypatch.setenv(consent.VARIABLE, value)
        assert refused(run, folder, *sentence)


def test_an_argument_is_consent(run, folder):
    opened = open_model(run, allow_plugins=True)
    assert type(opened.policy).__name__ == "Highest"
    assert (folder / "imported").exists()


def test_the_environment_variable_is_consent(run, monkeypatch):
    monkeypatch.setenv(consent.VARIABLE, "1")
    assert type(open_model(run).recommender).__name__ == "Own"


def test_a_name_that_the_user_gave_is_consent(run, folder):
    make_model(f"{MODULE}:Highest")
    assert refused(run, folder, f"recommender '{MODULE}:Own', whose code would run") is False
    make_model(form=f"{MODULE}:Own")
    open_model(run)


def test_a_keeper_takes_the_argument(run):
    with pytest.raises(RunError, match="whose code would run"):
        open_keeper(run, "memory:")
    with open_keeper(make_model(), "memory:") as keeper:
        for call in (keeper.swap, keeper.shadow):
            consent._named.clear()
            with pytest.raises(RunError, match="whose code would run"):
                call(run)
            call(run, allow_plugins=True)
    consent._named.clear()
    with open_keeper(run, "memory:", allow_plugins=True) as keeper:
        assert keeper.observe("u", "1", 3)


def test_the_api_takes_the_argument(run):
    data = dips.load("planted").select(range(40))
    for call in (dips.evaluate, dips.sketches):
        consent._named.clear()
        with pytest.raises(RunError, match="whose code would run"):
            call(run, data)
        assert call(run, data, allow_plugins=True)


@pytest.mark.parametrize(("old", "new"), [
    ("return candidates.rating", "return -candidates.rating"),
    ("(Base):\n    pass", "(Base):\n    is_random = True"),
    ("torch.zeros", "0 * torch.zeros"),
])  # fmt: skip
def test_a_class_that_has_changed_is_refused(old, new, run, folder):
    """The source of a base class of the user's own counts as well."""
    assert old in SOURCE
    (folder / f"{MODULE}.py").write_text(SOURCE.replace(old, new))
    assert not refused(run, folder, "it has changed; restore it, or train", allow_plugins=True)


def test_the_rest_of_a_module_may_change(run, folder):
    changed = SOURCE.replace("class Elsewhere:", "class Another:\n    more = 1\n\nclass Elsewhere:")
    (folder / f"{MODULE}.py").write_text(changed)
    open_model(run, allow_plugins=True)


def test_other_parameters_are_refused(folder, tmp_path):
    """The source is the same, but the class makes another number of parameters."""
    model = make_model(form=f"{MODULE}:Own")
    model.recommender.vectors.data = model.recommender.vectors.data[:, :1].contiguous()
    model.save(tmp_path)
    with pytest.raises(
        RunError, match=r"vectors is float32 \[12, 1\], where the model has float32"
    ):
        open_model(tmp_path)


def test_a_class_without_source_is_compared_by_its_parameters_alone():
    made = type("Made", (dips.Policy,), {"__module__": "__no_file__"})
    assert consent.source_digest(made) is None
    consent.check_source("policy", "m:Made", made, None)
    with pytest.raises(PluginError, match="it has changed"):
        consent.check_source("policy", "m:Made", made, "another")


def test_the_current_directory_is_not_searched(run, folder):
    """Python itself searches it in an interactive session and with -c."""
    place = f"Path({str(run)!r})"
    code = f"from dips.model.trained_model import *; open_model({place}, allow_plugins=True)"
    path = os.pathsep.join(entry for entry in sys.path if entry and entry != str(folder))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert f"there is no module '{MODULE}' on the import path" in done.stderr.splitlines()[-1]
    assert not (folder / "imported").exists()
