"""Plug-in classes by import name: their settings, their seed and their errors."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dips.errors import ConfigError, PluginError
from dips.plugins.loading import accepted_settings, describe_error, make_plugin

SOURCE = """
import torch

class Base:
    def __init__(self, *, size=1, color="red"):
        self.size, self.color = size, color

class Plain(Base):
    pass

class Named(Base):
    def __init__(self, size, seedling=None, **rest):
        super().__init__(size=size, **rest)
        self.draw, self.seedling = float(torch.rand(())), seedling

class Picky(Base):
    def __init__(self):
        raise KeyError("a\\nb")

def function():
    raise SystemExit("never called")
"""
SETTINGS = {"size": 3, "color": "blue", "weight": 7}


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "plug_in_source.py").write_text(SOURCE)
    (tmp_path / "plug_in_broken.py").write_text("def (:")
    (tmp_path / "plug_in_needy.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("plug_in_source").Base
    sys.modules.pop("plug_in_source")


def made(base: Any, name: str, seed: int = 0, **more: Any) -> Any:
    return make_plugin("thing", name, base, seed, {**SETTINGS, **more})


def test_a_constructor_gets_the_settings_that_it_names(base: Any) -> None:
    plain = made(base, "plug_in_source:Plain")
    assert (plain.size, plain.color) == (3, "blue")
    named = made(base, "plug_in_source:Named", seedling=5)
    assert (named.size, named.color, named.seedling) == (3, "blue", 5)
    assert accepted_settings(lambda: None, object, SETTINGS) == {}
    assert accepted_settings(lambda **rest: rest, base, SETTINGS) == {"size": 3, "color": "blue"}


def test_the_seed_decides_and_global_random_state_is_restored(base: Any) -> None:
    torch.manual_seed(11)
    expected = float(torch.rand(()))
    torch.manual_seed(11)
    values = [made(base, "plug_in_source:Named", seed).draw for seed in (1, 1, 2)]
    assert values[0] == values[1] != values[2]
    assert float(torch.rand(())) == expected


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no_such_module:Thing", "there is no module 'no_such_module' on the import path; install"),
        ("os.no_such:Thing", "there is no module 'os.no_such' on the import path; install it, or"),
        ("plug_in_needy:Thing", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("plug_in_source:Nothing", "AttributeError: module 'plug_in_source' has no attribute"),
        ("plug_in_source", "AttributeError"),
        ("plug_in_broken:Thing", "SyntaxError: invalid syntax"),
        ("plug_in_source:Picky", "KeyError: 'a\\nb'"),
        ("plug_in_source:function", "it is not a dips.Base"),
        ("os:abort", "it is not a dips.Base"),
        (":", "ValueError: Empty module name"),
    ],
)
def test_errors_are_one_sentence(base: Any, name: str, sentence: str) -> None:
    with pytest.raises(PluginError, match=re.escape(f"thing '{name}' cannot be made: {sentence}")):
        made(base, name)
    assert issubclass(PluginError, ConfigError)


def test_describe_error() -> None:
    assert describe_error(AssertionError("mend this\nand that")) == "mend this"
    assert describe_error(ConfigError("mend this")) == "mend this"
    assert describe_error(ValueError("too small")) == "ValueError: too small"
    assert describe_error(AssertionError()) == "AssertionError"
