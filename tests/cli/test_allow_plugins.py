"""Every command that opens a run imports a class of the user's own only with --allow-plugins."""

from __future__ import annotations

import json

import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from dips.model.trained_model import FILE
from dips.serve.stores.registry import open_store

COMMANDS = {
    "evaluate": ("RUN", "planted"),
    "cross": ("RUN", "RUN", "planted"),
    "headroom": ("RUN",),
    "story": ("RUN", "--user", "1"),
    "gradients": ("RUN",),
    "sketch": ("RUN", "planted", "--out", "DIR/x.csv"),
    "stream": ("RUN", "--store", "memory:"),
    "import": ("RUN", "DIR/lists.jsonl", "--store", "memory:"),
    "store resize": ("RUN", "sqlite:DIR/s.db"),
    "store forget": ("RUN", "sqlite:DIR/s.db", "--user", "u"),
}


@pytest.fixture(scope="module")
def run(trained, tmp_path_factory):
    """Return a run whose file names a class that does not exist."""
    folder = tmp_path_factory.mktemp("own") / "run"
    folder.mkdir()
    for path in trained("explicit", "--policy", "last", "--size", "3").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    with safe_open(folder / FILE, framework="pt") as file:
        about = json.loads(file.metadata()["dips"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    about["policy"]["name"] = "no_such_module:P"
    save_file(tensors, folder / FILE, metadata={"dips": json.dumps(about)})
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_the_flag_is_consent(name, run, command, tmp_path):
    (tmp_path / "lists.jsonl").write_text('{"user": "u", "items": ["1"]}')
    open_store(f"sqlite:{tmp_path}/s.db").close()
    words = [
        word.replace("RUN", str(run)).replace("DIR", str(tmp_path))
        for word in (*name.split(), *COMMANDS[name])
    ]
    found = command(*words)
    assert found.code == 2
    assert "policy 'no_such_module:P', whose code would run: if you trust it, give" in found.err
    allowed = command(*words, "--allow-plugins")
    assert allowed.code == 2
    assert "policy 'no_such_module:P' cannot be made: there is no module" in allowed.err


def test_settings_that_name_a_class_are_not_trained_with(trained, command, tmp_path):
    """`dips gradients` trains with config.json, which may name another policy than the model."""
    for path in trained("explicit", "--policy", "last", "--size", "3").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    document = json.loads((tmp_path / "config.json").read_text())
    document["asked"]["policy"] = "no_such_module:P"
    (tmp_path / "config.json").write_text(json.dumps(document))
    found = command("gradients", tmp_path)
    assert "policy 'no_such_module:P', whose code would run" in found.err
