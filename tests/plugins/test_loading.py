"""Classes by import name: what they are given, where they start, and what is said if it fails."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dips.errors import ConfigError, PluginError
from dips.plugins.loading import in_words, make_own, taken

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
OFFERED = {"size": 3, "color": "blue", "weight": 7}


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "plug_in_source.py").write_text(SOURCE)
    (tmp_path / "plug_in_broken.py").write_text("def (:")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("plug_in_source").Base
    sys.modules.pop("plug_in_source")


def made(base: Any, name: str, seed: int = 0, **more: Any) -> Any:
    return make_own("thing", name, base, seed, {**OFFERED, **more})


def test_a_constructor_is_given_what_it_names(base: Any) -> None:
    plain = made(base, "plug_in_source:Plain")
    assert (plain.size, plain.color) == (3, "blue")
    named = made(base, "plug_in_source:Named", seedling=5)
    assert (named.size, named.color, named.seedling) == (3, "blue", 5)
    assert taken(lambda: None, object, OFFERED) == {}
    assert taken(lambda **rest: rest, base, OFFERED) == {"size": 3, "color": "blue"}


def test_the_seed_decides_and_the_world_outside_is_left_alone(base: Any) -> None:
    torch.manual_seed(11)
    expected = float(torch.rand(()))
    torch.manual_seed(11)
    is_random = [made(base, "plug_in_source:Named", seed).draw for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    assert float(torch.rand(())) == expected


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no_such_module:Thing", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("plug_in_source:Nothing", "AttributeError: module 'plug_in_source' has no attribute"),
        ("plug_in_source", "AttributeError"),
        ("plug_in_broken:Thing", "SyntaxError: invalid syntax"),
        ("plug_in_source:Picky", "KeyError: 'a\\nb'"),
        ("plug_in_source:function", "it is not a dips.Base"),
        ("os:abort", "it is not a dips.Base"),
        (":", "ValueError: Empty module name"),
    ],
)
def test_one_sentence_says_why(base: Any, name: str, sentence: str) -> None:
    with pytest.raises(PluginError, match=re.escape(f"thing '{name}' cannot be made: {sentence}")):
        made(base, name)
    assert issubclass(PluginError, ConfigError)


def test_errors_in_words() -> None:
    assert in_words(AssertionError("mend this\nand that")) == "mend this"
    assert in_words(ConfigError("mend this")) == "mend this"
    assert in_words(ValueError("too small")) == "ValueError: too small"
    assert in_words(AssertionError()) == "AssertionError"
