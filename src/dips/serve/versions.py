"""Register trained models with a store: each gets a version number, written to its records."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from torch import nn

from dips.errors import ConfigError
from dips.model.trained_model import TrainedModel
from dips.serve.stores.base import Store, Table

PREFIX = b"version/"
MAX_VERSIONS = 2**16 - 1
"""Most models that may work on a store: a record holds the version in 2 bytes."""


def fingerprint(trained: TrainedModel) -> str:
    """Return a hash of settings, parameters and vocabulary: equal hashes make equal decisions."""
    about = {
        "policy": trained.policy_spec.to_dict(),
        "recommender": trained.spec.to_dict(),
        "periods": list(trained.periods),
        "selection": trained.selection,
        "seed": trained.seed,
    }
    digest = hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=16)
    parts = [trained.recommender, trained.policy]
    for part in parts:
        if isinstance(part, nn.Module):
            for name, value in sorted(part.state_dict().items()):
                digest.update(name.encode())
                digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    digest.update(trained.item_ids.blob.tobytes())
    return digest.hexdigest()


def read_versions(store: Store) -> dict[int, dict[str, Any]]:
    """Return what a store knows of each model that worked on it, by version number."""
    found = store.scan(Table.METADATA, PREFIX)
    return {int(key.removeprefix(PREFIX)): json.loads(value) for key, value in found}


def check_side_information(known: dict[int, dict[str, Any]], trained: TrainedModel) -> Any:
    """Return the side information of a model as JSON.

    Args:
        known: Models that worked on the store, from `read_versions`.
        trained: The model.

    Raises:
        ConfigError: The model uses other side information than the records of the store hold.
    """
    about = trained.side.to_dict()
    sides = json.loads(json.dumps({"clock": about["clock"], "columns": about["columns"]}))
    if any(other["sides"] != sides for other in known.values()):
        raise ConfigError(
            "the run was trained on other side information than the store holds: use a new store"
        )
    return sides


def register(store: Store, trained: TrainedModel) -> int:
    """Return the version number of a model in a store; a new model gets the next number.

    Args:
        store: The store, which is written to where the model is new.
        trained: The model.

    Returns:
        The version number, from 1 on.

    Raises:
        ConfigError: The model uses other side information than the records of the store hold.
    """
    known, identity = read_versions(store), fingerprint(trained)
    sides = check_side_information(known, trained)
    for number, about in known.items():
        if about["fingerprint"] == identity:
            return number
    if len(known) >= MAX_VERSIONS:
        raise ConfigError(f"{MAX_VERSIONS} runs have worked on this store: start a new one")
    about = {
        "fingerprint": identity,
        "policy": trained.policy_spec.name,
        "size": trained.size,
        "periods": list(trained.periods),
        "explicit": trained.explicit,
        "sides": sides,
    }
    number = len(known) + 1
    store.commit({Table.METADATA: {PREFIX + b"%05d" % number: json.dumps(about).encode()}})
    return number
