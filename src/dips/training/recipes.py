"""Named sets of settings, and how settings are combined: recipe < policy < file < flags."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dips.errors import ConfigError, choose_from
from dips.training.config import TrainConfig, flatten

PAPER: dict[str, Any] = {
    "update_interval": 1, "batch_size": 4096, "credit": "identity", "inner_lr": 0.4,
    "weight_decay": 2e-4, "lr_schedule": "constant", "policy_weight_decay": 2e-4,
    "policy_warmup_epochs": 0, "policy_freeze_epochs": 0, "dropout": 0.1, "dim": 32,
    "inner_steps": 10, "epochs": 100, "repeat_feature": False, "filter_sketch": False,
    "cosine": False, "recency_decay": False, "tie_embeddings": True, "inner_loss": "softmax",
}  # fmt: skip
"""What the paper's supplement sets for all data. It tunes inner_lr from 0.2, 0.4 and 0.8."""
RECIPES: dict[str, dict[str, Any]] = {
    "default": {},
    "quick": {"epochs": 6, "batch_size": 1024},
    "paper": {**PAPER, "user_batch": 256, "queue": 100, "learning_rate": 2e-5, "user_lr": 1e-4,
              "policy_lr": 2e-4},
    "paper-128": {**PAPER, "user_batch": 128, "queue": 50, "learning_rate": 1e-5, "user_lr": 5e-5,
                  "policy_lr": 1e-4},
}  # fmt: skip
"""Named sets of settings. The paper's: `paper` for MovieLens 1M, `paper-128` for other data."""
PAPER_POLICIES: dict[str, dict[str, Any]] = {
    "dips": {"credit": "identity"},
    "dips@1": {"credit": "identity", "queue": 1},
}
"""Settings that define the paper's policies. A recipe does not change them; file and flags do."""


def build_config(
    recipe: str | None = None, file: Path | None = None, flags: Mapping[str, Any] | None = None
) -> TrainConfig:
    """Combine a recipe, a TOML file and flags. What none of them gives stays open.

    Args:
        recipe: Name of a recipe. None: `default`, for every policy.
        file: TOML file with leaves, or with a table for each branch of the settings.
        flags: Leaves by name.

    Returns:
        The settings as asked. `dips.training.resolve` decides those that are None.

    Raises:
        ConfigError: The recipe, a setting or a value is unknown, or settings contradict.
    """
    asked = {**(_read_toml(file) if file else {}), **(flags or {})}
    policy = asked.get("policy", "")
    recipe = recipe or "default"
    if recipe not in RECIPES:
        raise ConfigError(f"unknown recipe '{recipe}': {choose_from(recipe, RECIPES)}")
    if "every" in asked and asked.get("periods"):
        raise ConfigError("every and periods contradict each other: give one of them")
    return TrainConfig.of(**{**RECIPES[recipe], **PAPER_POLICIES.get(policy, {}), **asked})


def baseline_config(config: TrainConfig, policy: str) -> TrainConfig:
    """Return the settings of a baseline that is trained beside a run.

    Args:
        config: Settings of the run as asked.
        policy: Name of the baseline.
    """
    return config.but(policy=policy, baselines=())


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return flatten(tomllib.loads(file.read_text()))
    except OSError:
        raise ConfigError(f"{file}: there is no such configuration file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not a TOML file: {error}") from None
