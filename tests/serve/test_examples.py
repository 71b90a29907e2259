"""The examples in the docstrings of the keeper run."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest


@pytest.mark.parametrize("name", ["keeper", "events", "stores.base"])
def test_examples_of_a_module_run(name):
    result = doctest.testmod(import_module(f"dips.serve.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
