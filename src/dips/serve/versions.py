"""Which runs have changed a store: each has a version number, and every record tells its own."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from torch import nn

from dips.errors import ConfigError
from dips.model.trained_model import TrainedModel
from dips.serve.stores.base import Store, Table

PREFIX = b"run/"
MOST = 2**16 - 1


def fingerprint(trained: TrainedModel) -> str:
    """The same for the same decisions: settings, parameters and vocabulary."""
    about = {
        "policy": trained.policy_spec.to_dict(),
        "recommender": trained.spec.to_dict(),
        "periods": list(trained.periods),
        "choice": trained.choice,
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


def versions(store: Store) -> dict[int, dict[str, Any]]:
    """What is known of every run that has worked on this store."""
    found = store.scan(Table.FACTS, PREFIX)
    return {int(key.removeprefix(PREFIX)): json.loads(value) for key, value in found}


def register(store: Store, trained: TrainedModel) -> int:
    """The version number of a run; a new run gets the next one."""
    known, mark = versions(store), fingerprint(trained)
    sides = {
        "clock": trained.sides.to_dict()["clock"],
        "columns": trained.sides.to_dict()["columns"],
    }
    sides = json.loads(json.dumps(sides))
    if any(about["sides"] != sides for about in known.values()):
        raise ConfigError(
            "the run was trained on other side information than the store holds: use a new store"
        )
    for number, about in known.items():
        if about["fingerprint"] == mark:
            return number
    if len(known) >= MOST:
        raise ConfigError(f"{MOST} runs have worked on this store: start a new one")
    about = {
        "fingerprint": mark,
        "policy": trained.policy_spec.name,
        "size": trained.size,
        "periods": list(trained.periods),
        "explicit": trained.explicit,
        "sides": sides,
    }
    number = len(known) + 1
    store.commit({Table.FACTS: {PREFIX + b"%05d" % number: json.dumps(about).encode()}})
    return number
