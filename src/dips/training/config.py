"""Every setting of a run, with a sentence each; the command line's help is made of them."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dips.errors import ConfigError
from dips.numerics.straight_through import ESTIMATORS
from dips.recommender.losses import EXPLICIT
from dips.recommender.losses import IMPLICIT as RANKING
from dips.stream.schedule import Schedule


def _setting(default: Any, help: str, low: float | None = None) -> Any:
    return field(default=default, metadata={"help": help, "low": low})


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """What decides a run, besides the data. Two dials matter most: `size` and `every`."""

    policy: str = _setting(
        "last",
        "Which interactions stay: last, last-distinct, reservoir, mix:M, frequent, hardest, "
        "influence, all; or what is learned: learned, dips, dips@1; or package.module:Class.",
    )
    size: int = _setting(4, "How many interactions a sketch keeps (K).", 1)
    every: int = _setting(1, "Refresh the sketch after this many interactions (tau).", 1)
    periods: tuple[int, ...] = _setting(
        (), "Refresh after these periods in turn, in place of every."
    )
    choice: str = _setting(
        "greedy", "Choose by the highest scores (greedy) or by chance (sampled)."
    )
    task: str = _setting("auto", "Predict ratings (explicit), items (implicit), or auto.")
    loss: str = _setting(
        "auto",
        "mse, bce or cce (explicit); softmax, bpr, top1, bpr-max or top1-max (implicit); or auto.",
    )
    negatives: int = _setting(
        0, "Items that an item is compared with in a step; 0: all for softmax, 256 for others.", 0
    )
    popularity: float = _setting(
        0.5, "Negatives are drawn in proportion to this power of their popularity.", 0
    )
    split: str = _setting("users", "Part users at random (users), or each user's own past (time).")
    seed: int = _setting(0, "Fixes the split, the start and every draw.")
    recommender: str = _setting(
        "dot",
        "dot (GMF with biases), mlp; gru or gru-separate (GRU4Rec, output vectors tied to the "
        "input's or apart); sasrec (self-attention); or package.module:Class.",
    )
    dim: int = _setting(32, "Dimensions of the user's and the items' vectors.", 1)
    inner_steps: int = _setting(10, "Gradient steps that adapt a user to the sketch.", 1)
    inner_rate: float = _setting(0.1, "Step size of the inner loop (alpha).", 0)
    inner_pull: float = _setting(
        0.0, "Weight of the pull towards the shared prior (R of Eq. 2).", 0
    )
    learning_rate: float = _setting(1e-2, "Adam's step size at the start; it falls as a cosine.", 0)
    weight_decay: float = _setting(
        -1.0,
        "L2 penalty on vectors, not on biases; -1 chooses by how much is known of an item.",
        -1,
    )
    user_rate: float = _setting(
        0.0, "Step size of the user prior by SGD with momentum; 0 leaves it to Adam.", 0
    )
    annealing: str = _setting("cosine", "How rates fall: as a cosine to 0, or constant.")
    batch: int = _setting(0, "Predictions per gradient step; 0 chooses by the size of the data.", 0)
    epochs: int = _setting(16, "Passes over the training users.", 1)
    patience: int = _setting(4, "Stop after this many epochs without a better validation.", 1)
    reroll: int = _setting(1, "Epochs between walks of policies that ask the recommender.", 1)
    users: int = _setting(0, "Users that walk together before parameters move; 0 means all.", 0)
    walks: int = _setting(
        1, "Walks in an epoch, a company of users each (see users); 0 chooses by the data.", 0
    )
    stretch: int = _setting(
        0, "Steps that they walk before parameters move; 0 means whole histories.", 0
    )
    policy_rate: float = _setting(3e-3, "Adam's step size for a policy that learns.", 0)
    policy_decay: float = _setting(0.0, "L2 penalty on a policy that learns.", 0)
    policy_batch: int = _setting(
        0, "Predictions per gradient step of the policy; 0 chooses by the size of the data.", 0
    )
    policy_wait: int = _setting(1, "Epochs before the policy begins to learn.", 0)
    policy_rest: int = _setting(2, "Last epochs in which the policy does not learn any more.", 0)
    caution: float = _setting(
        0.0, "Undo an epoch of the policy that makes validation worse by this share; 0 never.", 0
    )
    rival: str = _setting(
        "", "Policies to train beside one that learns, as a,b: the best on validation stays."
    )
    dropout: float = _setting(
        0.1, "Share of hidden units left out as the paper's network, a gru or a sasrec learns."
    )
    queue: int = _setting(50, "Decisions over which a choice earns credit (Q).", 1)
    credit: str = _setting(
        "survival", "What a choice earns: identity (the paper), discount or survival."
    )
    discount: float = _setting(0.9, "How credit fades from decision to decision.", 0)
    ghosts: int = _setting(4, "Dropped interactions that survival still follows.", 0)
    estimator: str = _setting(
        "straight-through", "Gradient of the choice: straight-through, gumbel or reinforce."
    )
    damping: float = _setting(1.0, "Added to the Hessian by the policy influence.", 0)
    device: str = _setting("auto", "cpu, cuda, or auto (cuda where there is one).")
    side: str = _setting(
        "", "Side information to learn from: categories, time, further columns; as a,b,c."
    )
    max_seconds: float = _setting(0.0, "Stop training after this time; 0 means no limit.", 0)
    max_users: int = _setting(0, "Use this many users of the data only; 0 means all.", 0)

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value, low = getattr(self, item.name), item.metadata["low"]
            _check_kind(item.name, value, str(item.type))
            if low is not None and not value >= low:
                raise ConfigError(f"{item.name} is {value}: it must be at least {low:g}")
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed and not (OWN_CLASS in allowed and ":" in value):
                known = ", ".join(allowed)
                raise ConfigError(f"{name} is '{value}': choose one of {known}")
        object.__setattr__(self, "periods", tuple(self.periods))
        Schedule(self.periods or (self.every,))

    @property
    def rivals(self) -> list[str]:
        """Policies to train beside."""
        return [name.strip() for name in self.rival.split(",") if name.strip()]

    @property
    def schedule(self) -> Schedule:
        """When the sketch is refreshed."""
        return Schedule(self.periods or (self.every,))

    def implicit(self, explicit_data: bool) -> bool:
        """Whether the task is to predict items: as given, or as the data has it."""
        return self.task == "implicit" or (self.task == "auto" and not explicit_data)

    def fitted(self, rows: int, users: int, items: int, *, implicit: bool) -> TrainConfig:
        """The same with all decided that depends on the training data: `rows` are predictions.

        Small data take small batches, so that an epoch has its 32 steps, the policy's 64.
        """
        most = WIDEST_IMPLICIT if implicit else WIDEST
        batch = self.batch or max(64, min(_power_of_two(rows // 32), most))
        wide = WIDEST if implicit else 4 * WIDEST
        policy_batch = self.policy_batch or max(256, min(_power_of_two(rows // 64), wide))
        least = COMPANY_IMPLICIT if implicit else COMPANY
        walks = self.walks or max(1, min(rows // least, MOST_WALKS))
        company = self.users or (-(-users // walks) if walks > 1 else 0)
        decay = self.weight_decay
        if decay < 0:
            decay = min(KNOWN * items / max(1, rows), MOST_DECAY)
        return self.but(batch=batch, policy_batch=policy_batch, users=company, weight_decay=decay)

    def but(self, **changes: Any) -> TrainConfig:
        """The same with some settings changed; unknown names are refused."""
        names = {item.name for item in dataclasses.fields(self)}
        for name in changes:
            if name not in names:
                raise ConfigError(f"unknown setting '{name}': known are {', '.join(sorted(names))}")
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as written to config.json."""
        return {**dataclasses.asdict(self), "periods": list(self.periods)}


WIDEST, WIDEST_IMPLICIT = 4096, 1024
"""Batches do not grow beyond this, where none are given."""

COMPANY, COMPANY_IMPLICIT, MOST_WALKS = 15_000, 6_000, 4
"""Where walks are not given: at least so many predictions in each, and no more walks than this.

A policy that moves several times in an epoch keeps the recommender from falling behind; but its
steps come from fewer users each, and ratings tell it less than rankings do (LOG.md).
"""
KNOWN, MOST_DECAY = 0.1, 3e-3
"""Where decay is not given it is this, shared among the ratings of an item, and no more."""


def _power_of_two(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)


KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "str": ((str,), "text"),
}


def _check_kind(name: str, value: Any, kind: str) -> None:
    """Refuse a value of another kind than the setting's: files may hold anything."""
    if kind.startswith("tuple"):
        fits, wanted = isinstance(value, tuple | list), "a list of whole numbers"
        fits = fits and all(type(entry) is int for entry in value)
    else:
        kinds, wanted = KINDS[kind]
        fits = isinstance(value, kinds) and not isinstance(value, bool)
    if not fits:
        raise ConfigError(f"{name} is {value!r}: it must be {wanted}")


OWN_CLASS = "package.module:Class"
"""Stands for any class of the user's own."""
CHOICES = {
    "choice": ("greedy", "sampled"),
    "task": ("auto", "explicit", "implicit"),
    "loss": ("auto", *EXPLICIT, *RANKING),
    "recommender": ("dot", "mlp", "gru", "gru-separate", "sasrec", OWN_CLASS),
    "split": ("users", "time"),
    "annealing": ("cosine", "constant"),
    "credit": ("identity", "discount", "survival"),
    "estimator": ESTIMATORS,
}
PAPER = {
    "stretch": 1, "batch": 4096, "credit": "identity", "inner_rate": 0.4, "weight_decay": 2e-4,
    "annealing": "constant", "policy_decay": 2e-4, "policy_wait": 0, "policy_rest": 0,
    "dropout": 0.1, "dim": 32, "inner_steps": 10, "epochs": 100,
}  # fmt: skip
"""What the paper's supplement sets for all data; it tunes inner_rate from 0.2, 0.4 and 0.8."""
RECIPES: dict[str, dict[str, Any]] = {
    "default": {},
    "quick": {"epochs": 6, "batch": 1024},
    "paper": {**PAPER, "users": 256, "queue": 100, "learning_rate": 2e-5, "user_rate": 1e-4,
              "policy_rate": 2e-4},
    "paper-128": {**PAPER, "users": 128, "queue": 50, "learning_rate": 1e-5, "user_rate": 5e-5,
                  "policy_rate": 1e-4},
}  # fmt: skip
"""Named sets of settings. The paper's: `paper` for MovieLens 1M, `paper-128` for other data."""
SUITED: dict[str, dict[str, Any]] = {
    "dips": {"queue": 100},
    "learned": {"epochs": 20, "patience": 20, "policy_rest": 4, "inner_rate": 0.2, "caution": 0.15,
                "rival": "last", "walks": 0},
}  # fmt: skip
"""What suits a named policy; recipe, file and flags come after it."""
SUITED_IMPLICIT: dict[str, dict[str, Any]] = {
    "learned": {"rival": "last,frequent"},
}
"""What suits it besides where items are predicted, which may come again and again."""
NAMED: dict[str, dict[str, Any]] = {
    "dips": {"credit": "identity"},
    "dips@1": {"credit": "identity", "queue": 1},
}
"""What makes a named policy that policy; only file and flags come after it."""
IMPLICIT = {"inner_rate": 0.2, "weight_decay": 1e-3}
"""What the implicit task changes in the defaults; recipe, file and flags still come after it."""
IMPLICIT_MLP = {**IMPLICIT, "batch": 32}
"""Anything else over every pair of user and item needs dim times the memory of a product."""
GRU = {"dim": 96, "weight_decay": 0.0, "dropout": 0.25}
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


def beside(config: TrainConfig, rival: str, *, implicit_data: bool) -> TrainConfig:
    """Settings for a rival: its own defaults, and what differs from this policy's."""
    same = {"recommender": config.recommender, "task": config.task}
    ours, theirs = (
        build_config("default", flags={**same, "policy": policy}, implicit_data=implicit_data)
        for policy in (config.policy, rival)
    )
    given = {
        name: value
        for name, value in vars(config).items()
        if value != getattr(ours, name) and name not in ("policy", "rival", "walks")
    }
    return theirs.but(**given)


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError:
        raise ConfigError(f"{file}: there is no such configuration file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not a TOML file: {error}") from None
