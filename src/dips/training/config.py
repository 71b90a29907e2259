"""Declare every setting of a run: its default, its range and the sentence that `--help` shows.

`TrainConfig` is a tree of four frozen dataclasses. The names of the leaves are unique; they are the
flags of the command line and the keys of TOML files and of config.json. A default of `None` means
that `dips.training.resolve` decides the value from the data. Where the type itself allows `None`,
it may stay: no limit, or all. Knows nothing about data or files, and imports no torch: `--help` of
all commands is made from it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from dips.data.splitting import FOLDS
from dips.errors import ConfigError, choose_from, did_you_mean
from dips.policy.settings import BEST_START, INITIAL_POLICIES
from dips.recommender.settings import EXPLICIT, SEQUENTIAL, RecommenderSettings, setting
from dips.recommender.settings import IMPLICIT as RANKING
from dips.stream.schedule import Schedule

SEED_MASK = 2**31 - 1
"""Derived seeds are below this number."""
OWN_CLASS = "package.module:Class"
"""Stands for any class of the user's own among the choices of a setting."""


@dataclass(frozen=True, kw_only=True)
class SketchConfig:
    """What a sketch keeps, and when that is decided."""

    policy: str = setting(
        "learned",
        "Which interactions stay: last, last-distinct, reservoir, mix:M, last-top:M, frequent, "
        "hardest, hardest:H, influence, influence:H, all; pretrained; learned policies: learned, "
        "dips, dips@1; or package.module:Class.",
        basic=True,
    )
    size: int = setting(4, "How many interactions a sketch keeps (K).", low=1, basic=True)
    every: int = setting(
        1, "Refresh the sketch after this many interactions (tau).", low=1, basic=True
    )
    periods: tuple[int, ...] | None = setting(
        None, "Refresh after these periods in turn, for example 3,5,2. Replaces every."
    )
    selection: str = setting(
        "greedy",
        "Keep the highest scores (greedy), or sample by the scores (sampled).",
        choices=("greedy", "sampled"),
    )
    damping: float = setting(1.0, "Added to the Hessian by the policy influence.", low=0)

    @property
    def schedule(self) -> Schedule:
        """The refresh schedule that `every` or `periods` describe."""
        return Schedule(self.periods or (self.every,))


@dataclass(frozen=True, kw_only=True)
class ModelConfig(RecommenderSettings):
    """The task, the loss and the recommender with its inner loop."""

    task: str = setting(
        None,
        "Predict ratings (explicit) or items (implicit). Default: explicit if there are ratings.",
        choices=("explicit", "implicit"),
        basic=True,
    )
    loss: str = setting(
        None,
        "mse, bce or cce (explicit); softmax, bpr, top1, bpr-max or top1-max (implicit). "
        "Default: mse or softmax.",
        choices=(*EXPLICIT, *RANKING),
        basic=True,
    )
    recommender: str = setting(
        "dot",
        "dot (matrix factorisation with biases), mlp (NCF), gru (GRU4Rec), sasrec, or "
        "package.module:Class.",
        choices=("dot", "mlp", *SEQUENTIAL, OWN_CLASS),
        basic=True,
    )
    negative_exponent: float = setting(
        0.5, "Sample negatives in proportion to this power of their popularity.", low=0
    )
    dropout: float = setting(
        None, "Dropout of the paper's policy network, of gru and of sasrec.", low=0
    )
    side: tuple[str, ...] = setting(
        (), "Side information to use: categories, time and further columns, as a,b,c."
    )

    @property
    def implicit(self) -> bool:
        """Whether items are predicted. The task must be decided."""
        return self.task == "implicit"

    @property
    def sequential(self) -> bool:
        """Whether the recommender reads items in order (gru, sasrec) and predicts items."""
        return self.implicit and self.recommender in SEQUENTIAL

    @property
    def softmax_dot(self) -> bool:
        """Whether it is the dot product with a softmax and an inner loop in closed form.

        The linearised inner loop allows sampled negatives; the inner softmax is over all items.
        """
        closed = self.inner_loss == "linearised" or not self.negatives
        return self.implicit and self.loss == "softmax" and self.recommender == "dot" and closed


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How the recommender is trained, and on what."""

    seed: int = setting(0, "Fixes split, initialisation and sampling.", low=0, basic=True)
    fold: int = setting(
        0,
        "Which of five folds of the users: 60 % train, 20 % validate, 20 % test. The seed draws "
        "the permutation of users.",
        low=0,
        high=FOLDS - 1,
    )
    repeat: int = setting(
        0,
        "Train again on the same split with the initialisation and sampling of this number.",
        low=0,
    )
    split: str = setting(
        "users",
        "Split users at random (users), each user's history by time (time), or all events at two "
        "dates (date).",
        choices=("users", "time", "date"),
    )
    epochs: int = setting(None, "Passes over the training users.", low=1, basic=True)
    patience: int = setting(None, "Stop after this many epochs without a better validation.", low=1)
    learning_rate: float = setting(
        None, "Initial learning rate of Adam for the recommender.", low=0
    )
    user_lr: float | None = setting(
        None,
        "Learning rate of SGD with momentum for the user prior. Default: Adam trains it too.",
        low=0,
    )
    weight_decay: float = setting(
        None, "L2 penalty on embeddings, not on biases. Default: by events per item.", low=0
    )
    lr_schedule: str = setting(
        "cosine",
        "Learning-rate schedule: cosine decay to 0, or constant.",
        choices=("cosine", "constant"),
    )
    batch_size: int = setting(
        None, "Predictions in a gradient step. Default: by the number of predictions.", low=1
    )
    resketch_epochs: int = setting(
        1, "Epochs between rollouts of policies that use the recommender.", low=1
    )
    user_batch: int | None = setting(
        None, "Users rolled out together before parameters are updated. Default: all.", low=1
    )
    user_batches_per_epoch: int = setting(
        None, "User batches in an epoch, where user_batch is not given.", low=1
    )
    update_interval: int | None = setting(
        None,
        "Steps of the rollout between parameter updates. Default: whole histories. 1 is the "
        "paper's Algorithm 1.",
        low=1,
    )
    device: str | None = setting(
        None, "cpu, cuda or cuda:1. Default: cuda where there is one.", basic=True
    )
    max_seconds: float | None = setting(
        None,
        "Stop training after this many seconds; each start and each baseline has as many.",
        low=0,
        basic=True,
    )
    max_users: int | None = setting(
        None, "Use this many users of the data only.", low=1, basic=True
    )

    @property
    def training_seed(self) -> int:
        """The seed of initial parameters and of sampling: of `seed`, `fold` and `repeat`.

        In fold 0 with `repeat = 0` it is `seed`. Folds must not share it: with one initialisation
        the noise of training would have the same sign in all folds.
        """
        if not self.fold and not self.repeat:
            return self.seed
        import torch

        from dips.numerics.hashing import combine

        return int(combine(torch.tensor(self.seed), self.fold, self.repeat)) & SEED_MASK


@dataclass(frozen=True, kw_only=True)
class PolicyTrainingConfig:
    """How a policy with parameters is trained."""

    baselines: tuple[str, ...] = setting(
        None,
        "Policies to train beside a learned one, as a,b. The best on validation is the run.",
        basic=True,
    )
    initial_policy: str = setting(
        None,
        "Where `learned` starts: last; rule (on ratings close to hardest:H, H = K, at least 4; "
        "otherwise frequent where users repeat items, last-top or last); pretrained (the shipped "
        "parameters); or best (train from last and from rule, keep the better one on validation). "
        "Default: best on ratings, rule otherwise.",
        choices=(BEST_START, *INITIAL_POLICIES),
    )
    policy_lr: float = setting(None, "Learning rate of Adam for the policy.", low=0)
    policy_weight_decay: float = setting(0.0, "L2 penalty on the policy.", low=0)
    policy_batch_size: int = setting(
        None,
        "Predictions in a gradient step of the policy. Default: by the number of predictions.",
        low=1,
    )
    policy_warmup_epochs: int = setting(1, "Epochs before the policy is trained.", low=0)
    policy_freeze_epochs: int = setting(None, "Last epochs, in which the policy is frozen.", low=0)
    residual: bool = setting(
        None,
        "Give `learned` the residual of each prediction as input. Default: on for ratings.",
    )
    predicted_score: bool = setting(
        None,
        "Give `learned` the predicted score of each candidate in place of the residual, and start "
        "from it. Default: on if items of the sketch are filtered (dot with softmax).",
    )
    queue: int = setting(None, "Decisions over which a choice receives credit (Q).", low=1)
    credit: str = setting(
        "survival",
        "Credit over time: identity (the paper), discount or survival.",
        choices=("identity", "discount", "survival"),
    )
    discount: float = setting(0.9, "Discount of credit from decision to decision.", low=0)
    dropped_candidates: int = setting(
        4, "Decisions for which survival credit follows a dropped candidate.", low=0
    )
    estimator: str = setting(
        "straight-through",
        "Gradient estimator of the choice: straight-through, gumbel or reinforce.",
        choices=("straight-through", "gumbel", "reinforce"),
    )
    revert_tolerance: float = setting(
        None,
        "Revert an epoch of the policy that makes validation worse by more than this share. "
        "inf: never.",
        low=0,
    )


GROUPS: dict[str, type] = {
    "sketch": SketchConfig,
    "model": ModelConfig,
    "training": TrainingConfig,
    "policy_training": PolicyTrainingConfig,
}
"""The branches of the tree, in the order of the help."""


@dataclass(frozen=True)
class TrainConfig:
    """All settings of a run. Two matter most: `size` and `every`.

    >>> config = TrainConfig.of(policy="reservoir", size=8)
    >>> config.sketch.size, config.training.epochs
    (8, None)
    """

    sketch: SketchConfig = field(default_factory=SketchConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    policy_training: PolicyTrainingConfig = field(default_factory=PolicyTrainingConfig)

    def __post_init__(self) -> None:
        for name in GROUPS:
            _check_group(getattr(self, name))
        Schedule(self.sketch.periods or (self.sketch.every,))

    @classmethod
    def of(cls, **settings: Any) -> TrainConfig:
        """Return the defaults with these leaves changed."""
        return cls().but(**settings)

    def but(self, **changes: Any) -> TrainConfig:
        """Return a copy with these leaves changed.

        Raises:
            ConfigError: A name is unknown, or a value is out of range.
        """
        for name in changes:
            if name not in LEAVES:
                near, known = did_you_mean(name, [*LEAVES, *GROUPS]), ", ".join(sorted(LEAVES))
                raise ConfigError(f"unknown setting '{name}': {near}known are {known}")
        parts = {}
        for group, kind in GROUPS.items():
            names = {leaf.name for leaf in dataclasses.fields(kind)}
            own = {name: _plain(name, changes[name]) for name in changes if name in names}
            parts[group] = dataclasses.replace(getattr(self, group), **own)
        return TrainConfig(**parts)

    def __getitem__(self, name: str) -> Any:
        """Return the value of a leaf by its name."""
        return getattr(getattr(self, LEAVES[name]), name)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield (name, value) of every leaf."""
        return ((name, self[name]) for name in LEAVES)

    def to_dict(self) -> dict[str, Any]:
        """Return the leaves as values that JSON knows; infinity becomes "inf"."""
        return {name: _as_json(value) for name, value in self.items()}


def leaf_fields() -> list[dataclasses.Field[Any]]:
    """Return the declarations of all leaves, in the order of the help."""
    return [leaf for kind in GROUPS.values() for leaf in dataclasses.fields(kind)]


LEAVES: dict[str, str] = {
    leaf.name: group for group, kind in GROUPS.items() for leaf in dataclasses.fields(kind)
}
"""The branch of each leaf."""

KINDS: dict[str, dict[str, str]] = {
    group: {leaf.name: str(leaf.type) for leaf in dataclasses.fields(kind)}
    for group, kind in GROUPS.items()
}


def leaf_types() -> dict[str, Any]:
    """Return the annotated type of every leaf."""
    return {name: hint for kind in GROUPS.values() for name, hint in get_type_hints(kind).items()}


def flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of settings in which branches may be tables, as in a TOML file."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= value if name in GROUPS and isinstance(value, Mapping) else {name: value}
    return flat


WANTED = {
    "int": "a whole number", "float": "a number", "str": "text", "bool": "true or false",
    "tuple[int, ...]": "a list of whole numbers", "tuple[str, ...]": "a list of names",
}  # fmt: skip


def _plain(name: str, value: Any) -> Any:
    """Return a value as its leaf holds it: lists become tuples, whole numbers floats, "inf" inf."""
    kind = _kind(name)
    if kind.startswith("tuple") and isinstance(value, list | tuple):
        return tuple(value)
    if kind == "float" and value == "inf":
        return math.inf
    if kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


def _kind(name: str) -> str:
    """Return the type of a leaf in words, without None."""
    return KINDS[LEAVES[name]][name].removesuffix(" | None")


def _check_group(group: Any) -> None:
    """Refuse values of the wrong type, below their least value or not among the choices."""
    for leaf in dataclasses.fields(group):
        value, about = getattr(group, leaf.name), leaf.metadata
        if value is None and leaf.default is None:
            continue
        if not _fits(value, _kind(leaf.name)):
            wanted = WANTED[_kind(leaf.name)]
            raise ConfigError(f"{leaf.name} is {value!r}: it must be {wanted}")
        if about["low"] is not None and not value >= about["low"]:
            raise ConfigError(f"{leaf.name} is {value}: it must be at least {about['low']:g}")
        if about["high"] is not None and not value <= about["high"]:
            raise ConfigError(f"{leaf.name} is {value}: it must be at most {about['high']:g}")
        allowed = about["choices"]
        own = OWN_CLASS in allowed and ":" in str(value)
        if allowed and value not in allowed and not own:
            raise ConfigError(f"{leaf.name} is '{value}': {choose_from(str(value), allowed)}")


def _fits(value: Any, kind: str) -> bool:
    """Return whether a value has the type of its leaf."""
    if kind.startswith("tuple"):
        inner = int if "int" in kind else str
        return isinstance(value, tuple) and all(type(entry) is inner for entry in value)
    types: dict[str, tuple[type, ...]] = {
        "int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)
    }  # fmt: skip
    return isinstance(value, types[kind]) and (kind == "bool" or not isinstance(value, bool))


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return "inf" if value == math.inf else value
