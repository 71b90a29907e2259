"""Named sets of settings, what suits a policy and a task, and how settings are put together."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dips.errors import ConfigError
from dips.training.config import TrainConfig

PAPER = {
    "stretch": 1, "batch": 4096, "credit": "identity", "inner_lr": 0.4, "weight_decay": 2e-4,
    "lr_schedule": "constant", "policy_weight_decay": 2e-4, "policy_warmup_epochs": 0, "policy_freeze_epochs": 0,
    "dropout": 0.1, "dim": 32, "inner_steps": 10, "epochs": 100,
    "repeat_feature": 0, "filter_sketch": 0, "cosine": 0, "recency_decay": 0, "separate_input": 0,
}  # fmt: skip
"""What the paper's supplement sets for all data; it tunes inner_lr from 0.2, 0.4 and 0.8."""
RECIPES: dict[str, dict[str, Any]] = {
    "default": {},
    "quick": {"epochs": 6, "batch": 1024},
    "paper": {**PAPER, "users": 256, "queue": 100, "learning_rate": 2e-5, "user_lr": 1e-4,
              "policy_lr": 2e-4},
    "paper-128": {**PAPER, "users": 128, "queue": 50, "learning_rate": 1e-5, "user_lr": 5e-5,
                  "policy_lr": 1e-4},
}  # fmt: skip
"""Named sets of settings. The paper's: `paper` for MovieLens 1M, `paper-128` for other data."""
SUITED: dict[str, dict[str, Any]] = {
    "dips": {"queue": 100},
    "learned": {"epochs": 20, "patience": 20, "policy_freeze_epochs": 4, "inner_lr": 0.2, "revert_tolerance": 0.15,
                "baseline": "last,hardest", "walks": 0},
}  # fmt: skip
"""What suits a named policy; recipe, file and flags come after it."""
SUITED_IMPLICIT: dict[str, dict[str, Any]] = {
    "learned": {
        "baseline": "last,last-distinct,frequent,last-top:4",
        "inner_lr": -1.0,
        "policy_lr": 1e-3,
    },
}
"""What suits it besides where items are predicted, which may come again and again."""
NAMED: dict[str, dict[str, Any]] = {
    "dips": {"credit": "identity"},
    "dips@1": {"credit": "identity", "queue": 1},
}
"""What makes a named policy that policy; only file and flags come after it."""
IMPLICIT = {"inner_lr": -1.0}
"""What the implicit task changes in the defaults; recipe, file and flags still come after it."""
IMPLICIT_MLP = {"inner_lr": 0.2, "weight_decay": 1e-3, "batch": 32}
"""Anything else over every pair of user and item needs dim times the memory of a product."""
GRU = {"dim": 96, "weight_decay": -1.0, "dropout": 0.25}
"""What a gru changes in the defaults."""
SASREC = {**GRU, "learning_rate": 5e-3}
"""What a sasrec changes in the defaults: attention wants smaller steps."""
BY_RECOMMENDER = {"dot": IMPLICIT, "gru": GRU, "gru-separate": GRU, "sasrec": SASREC}
"""What the implicit task changes for a recommender; for any other it is as for the mlp."""


def build_config(
    recipe: str | None = None,
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    *,
    implicit_data: bool = False,
) -> TrainConfig:
    """Defaults of the task and the policy < recipe < what the policy's name means < file < flags.

    Without a recipe the paper's policies take the paper's, and all others the default.
    """
    asked = {**(_read_toml(file) if file else {}), **(flags or {})}
    policy = asked.get("policy", "")
    recipe = recipe or ("paper" if policy in NAMED else "default")
    if recipe not in RECIPES:
        raise ConfigError(f"unknown recipe '{recipe}': choose one of {', '.join(RECIPES)}")
    means = NAMED.get(policy, {})
    suited, given = SUITED.get(policy, {}), {**RECIPES[recipe], **means, **asked}
    if "every" in given and given.get("periods"):
        raise ConfigError("every and periods contradict each other: give one of them")
    config = TrainConfig().but(**{**suited, **given})
    if not config.implicit(explicit_data=not implicit_data):
        return config
    fitting = BY_RECOMMENDER.get(config.recommender, IMPLICIT_MLP)
    return config.but(**{**fitting, **suited, **SUITED_IMPLICIT.get(policy, {}), **given})


def baseline_config(config: TrainConfig, baseline: str, *, implicit_data: bool) -> TrainConfig:
    """Settings for a rival: its own defaults, and what differs from this policy's."""
    same = {"recommender": config.recommender, "task": config.task}
    ours, theirs = (
        build_config("default", flags={**same, "policy": policy}, implicit_data=implicit_data)
        for policy in (config.policy, baseline)
    )
    given = {
        name: value
        for name, value in vars(config).items()
        if value != getattr(ours, name) and name not in ("policy", "baseline", "walks")
    }
    return theirs.but(**given)


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError:
        raise ConfigError(f"{file}: there is no such configuration file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not a TOML file: {error}") from None
