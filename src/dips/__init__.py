"""dips learns which K interactions of each user's history to keep."""

from importlib import import_module
from os import environ as _environ
from typing import TYPE_CHECKING, Any

# By default, threads spin at barriers for milliseconds. Beside one other process, a softmax on two
# cores then takes a hundred times as long. It has an effect if torch is not yet imported.
if "OMP_WAIT_POLICY" not in _environ:
    _environ.setdefault("GOMP_SPINCOUNT", "2000")

if TYPE_CHECKING:
    from dips.api import (
        compare,
        evaluate,
        gradients,
        load,
        paper,
        session,
        sketches,
        train,
        transfer,
    )
    from dips.data.interactions import Interactions
    from dips.errors import DipsError
    from dips.model.trained_model import TrainedModel
    from dips.policy.base import Policy
    from dips.policy.network import Network
    from dips.recommender.base import Recommender
    from dips.serve.keeper import open_keeper
    from dips.serve.reader import open_reader
    from dips.sketch.records import Candidates
    from dips.training.config import TrainConfig

__version__ = "0.1.0"
__all__ = [
    "Candidates",
    "DipsError",
    "Interactions",
    "Network",
    "Policy",
    "Recommender",
    "TrainConfig",
    "TrainedModel",
    "compare",
    "evaluate",
    "gradients",
    "load",
    "open_keeper",
    "open_reader",
    "paper",
    "session",
    "sketches",
    "train",
    "transfer",
]
_HOMES = {
    "TrainedModel": "dips.model.trained_model",
    "Candidates": "dips.sketch.records",
    "DipsError": "dips.errors",
    "Interactions": "dips.data.interactions",
    "Network": "dips.policy.network",
    "Policy": "dips.policy.base",
    "Recommender": "dips.recommender.base",
    "TrainConfig": "dips.training.config",
    "open_keeper": "dips.serve.keeper",
    "open_reader": "dips.serve.reader",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a service must not load training code."""
    if name not in __all__:
        raise AttributeError(f"module 'dips' has no attribute '{name}'")
    return getattr(import_module(_HOMES.get(name, "dips.api")), name)
