"""Stores by name: another store is added here, and every suite runs on it."""

from __future__ import annotations

import pytest

STORES = {"memory": "memory:", "sqlite": "sqlite:{folder}/store.db"}
LASTING = ("sqlite",)
"""Stores that outlive the process."""


@pytest.fixture(params=STORES)
def url(request, tmp_path) -> str:
    """The address of an empty store of each kind."""
    return STORES[request.param].format(folder=tmp_path)


@pytest.fixture(params=LASTING)
def lasting(request, tmp_path) -> str:
    """The address of an empty store of each kind that outlives the process."""
    return STORES[request.param].format(folder=tmp_path)
