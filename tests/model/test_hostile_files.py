"""Model files that were made to do harm: nothing in them runs, and no memory is taken for them."""

from __future__ import annotations

import json
import os
import re
import resource
import struct
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from dips.errors import RunError
from dips.model.trained_model import FILE, open_model
from tests.serve.models import make_model

TRAP = "a_module_that_tells_of_its_import"


@pytest.fixture
def run(tmp_path):
    make_model("learned", 3).save(tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """Return a file that exists once the module on the import path was imported."""
    path = tmp_path / "import"
    path.mkdir()
    (path / f"{TRAP}.py").write_text(
        "import pathlib\nfrom dips import Policy, Recommender\n"
        f"pathlib.Path({str(path / 'ran')!r}).touch()\n"
        "class P(Policy):\n    def score(self, candidates, signals): ...\n"
        "class R(Recommender): ...\n"
    )
    monkeypatch.syspath_prepend(path)
    yield path / "ran"
    sys.modules.pop(TRAP, None)


def rewrite(run, change):
    """Change the description or the tensors of a model file."""
    with safe_open(run / FILE, framework="pt") as file:
        about = json.loads(file.metadata()["dips"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    text = change(about, tensors)
    save_file(tensors, run / FILE, metadata={"dips": text or json.dumps(about)})


def edit(part, **values):
    """Return a change of fields of the policy, of the recommender, or of the whole."""

    def change(about, tensors):
        (about[part] if part else about).update(values)

    return change


def replace_header(run, change):
    """Change the bytes of the safetensors header."""
    content = (run / FILE).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = change(content[8 : 8 + length])
    (run / FILE).write_bytes(struct.pack("<Q", len(header)) + header + content[8 + length :])


def tensor(name, change):
    def apply(about, tensors):
        tensors[name] = change(tensors[name])

    return lambda run: rewrite(run, apply)


def swap_for_directory(run):
    (run / FILE).unlink()
    (run / FILE).mkdir()


def swap_for_pipe(run):
    (run / FILE).unlink()
    os.mkfifo(run / FILE)


def with_nan(values):
    values.view(-1)[0] = torch.nan
    return values


def nested(depth):
    return lambda about, tensors: '{"version":' + "[" * depth + "]" * depth + "}"


ITEMS = "recommender.vectors"
DAMAGE = {
    "header length beyond the file": lambda run: (run / FILE).write_bytes(
        struct.pack("<Q", 2**62) + (run / FILE).read_bytes()[8:]
    ),
    "header that is not UTF-8": lambda run: replace_header(run, lambda h: h.replace(b"I", b"\xff")),
    "truncated": lambda run: (run / FILE).write_bytes((run / FILE).read_bytes()[:-9]),
    "empty": lambda run: (run / FILE).write_bytes(b""),
    "directory": swap_for_directory,
    "named pipe": swap_for_pipe,
    "tensor named twice": lambda run: replace_header(
        run, lambda h: h[:1] + re.search(rb'"items.blob":\{.*?\}', h).group() + b"," + h[1:]
    ),
    "key named twice": lambda run: rewrite(
        run, lambda about, tensors: '{"seed": 1, ' + json.dumps(about)[1:]
    ),
    "description nested deeply": lambda run: rewrite(run, nested(100_000)),
    "description that is a list": lambda run: rewrite(run, lambda about, tensors: "[1]"),
    "more items than ids": lambda run: rewrite(run, edit("recommender", items=10**12)),
    "huge dimension": lambda run: rewrite(run, edit("recommender", dim=10**12)),
    "huge policy": lambda run: rewrite(run, edit("policy", dim=10**12)),
    "huge sketch": lambda run: rewrite(run, edit("policy", size=10**12)),
    "negative dimension": lambda run: rewrite(run, edit("recommender", dim=-1)),
    "text for a number": lambda run: rewrite(run, edit("recommender", inner_steps="3")),
    "number that is not finite": lambda run: rewrite(run, edit("policy", spread=float("inf"))),
    "number too large": lambda run: rewrite(
        run, lambda about, tensors: json.dumps(about).replace('"seed": 0', '"seed": 1e999')
    ),
    "truth for a number": lambda run: rewrite(run, edit("", seed=True)),
    "unknown field": lambda run: rewrite(run, edit("policy", hook="os.system")),
    "unknown policy": lambda run: rewrite(run, edit("policy", name="best")),
    "policy without a name": lambda run: rewrite(run, edit("policy", name="")),
    "policy that is no text": lambda run: rewrite(run, edit("policy", name=["last"])),
    "unknown recommender": lambda run: rewrite(run, edit("recommender", kind="tree")),
    "unknown selection": lambda run: rewrite(run, edit("", selection="all of them")),
    "period 0": lambda run: rewrite(run, edit("", periods=[0])),
    "no period": lambda run: rewrite(run, edit("", periods=[])),
    "period that is no number": lambda run: rewrite(run, edit("", periods=["1"])),
    "parameter that is NaN": tensor(ITEMS, with_nan),
    "parameter of another type": tensor(ITEMS, torch.Tensor.double),
    "parameter of another shape": tensor(ITEMS, lambda values: values[:, :-1].contiguous()),
    "parameter too many": lambda run: rewrite(
        run, lambda about, tensors: tensors.update({"policy.more": torch.zeros(1)})
    ),
    "item id that is not UTF-8": tensor("items.blob", lambda values: values | 0xC0),
    "item ids that are equal": tensor("items.blob", lambda values: values * 0 + 65),
    "item ids beyond their text": tensor("items.offsets", lambda values: values * 2),
    "item ids that run backwards": tensor("items.offsets", lambda values: values.flip(0)),
    "item ids of another type": tensor("items.offsets", torch.Tensor.float),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_hostile_file_is_refused_in_one_sentence(kind, run):
    DAMAGE[kind](run)
    with pytest.raises(RunError) as refused:
        open_model(run)
    sentence = str(refused.value)
    assert sentence.startswith(f"{run / FILE} is damaged or was not written by dips (")
    assert "\n" not in sentence


@pytest.mark.parametrize(("part", "key", "name"), [
    ("policy", "name", f"{TRAP}:P"),
    ("policy", "name", f"{TRAP}.inner:P"),
    ("policy", "name", f"last.{TRAP}:P"),
    ("policy", "name", "os.path:join"),
    ("policy", "name", "../../etc:passwd"),
    ("policy", "name", "..:P"),
    ("recommender", "kind", f"{TRAP}:R"),
    ("recommender", "kind", "../evil:R"),
])  # fmt: skip
def test_a_name_in_a_file_is_not_imported(part, key, name, run, trap):
    rewrite(run, edit(part, **{key: name}))
    reason = re.escape(f"needs what it was trained with: {part} '{name}', whose code would run: if")
    with pytest.raises(RunError, match=reason + ".* give --allow-plugins, set DIPS_ALLOW_PLUGINS="):
        open_model(run)
    assert not trap.exists()


@pytest.mark.parametrize("name", ["os:system", "../../etc:passwd", "os.path:join", "no such:P"])
def test_an_allowed_name_must_be_a_policy(name, run):
    rewrite(run, edit("policy", name=name))
    with pytest.raises(
        RunError, match=r"needs what it was trained with: policy '.*' cannot be made"
    ):
        open_model(run, allow_plugins=True)


def without_ids(rows):
    def change(about, tensors):
        about["recommender"]["items"] = rows
        tensors["items.blob"] = torch.zeros(0, dtype=torch.uint8)
        tensors["items.offsets"] = torch.zeros(1, dtype=torch.int64)

    return change


@pytest.mark.parametrize("change", [
    without_ids(100_000_000),
    edit("recommender", dim=20_000_000),
    edit("policy", name="dips", items=1_000_000),
])  # fmt: skip
def test_sizes_that_lie_take_no_memory(change, run):
    """The parameters would take a gigabyte."""
    rewrite(run, change)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RunError, match="is damaged"):
        open_model(run)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def test_no_value_of_a_field_gives_another_error(run):
    """Every field takes every wrong value; some of them are harmless."""
    with safe_open(run / FILE, framework="pt") as file:
        about = json.loads(file.metadata()["dips"])
    original = (run / FILE).read_bytes()
    places = [("", key) for key in about]
    places += [(part, key) for part in ("policy", "recommender") for key in about[part]]
    places += [("side", key) for key in about["policy"]["side"]]
    refused = 0
    for part, key in places:
        for value in (None, -1, 0, 10**30, 0.5, True, "x", "", "\x00", [], {}, [[1]], {"a": 1}):

            def change(about, tensors, part=part, key=key, value=value):
                found = about["policy"]["side"] if part == "side" else about
                (found if part in ("", "side") else found[part])[key] = value

            (run / FILE).write_bytes(original)
            rewrite(run, change)
            try:
                open_model(run)
            except RunError:
                refused += 1
    assert refused > 5 * len(places)
