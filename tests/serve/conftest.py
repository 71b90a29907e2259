"""Stores to test, by name: a new store is added here, and all suites run on it."""

from __future__ import annotations

import pytest

STORES = {"memory": "memory:", "sqlite": "sqlite:{folder}/store.db"}
DURABLE = ("sqlite",)
"""Stores whose data outlives the process."""


@pytest.fixture(params=STORES)
def url(request, tmp_path) -> str:
    """URL of an empty store of each kind."""
    return STORES[request.param].format(folder=tmp_path)


@pytest.fixture(params=DURABLE)
def durable(request, tmp_path) -> str:
    """URL of an empty store of each kind whose data outlives the process."""
    return STORES[request.param].format(folder=tmp_path)
