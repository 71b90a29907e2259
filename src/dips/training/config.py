"""Every setting of a run, with a sentence each; the command line's help is made of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from dips.errors import ConfigError
from dips.numerics.straight_through import ESTIMATORS
from dips.policy.registry import NEWEST
from dips.recommender.losses import EXPLICIT
from dips.recommender.losses import IMPLICIT as RANKING
from dips.recommender.registry import IN_ORDER
from dips.stream.schedule import Schedule


def _setting(default: Any, help: str, low: float | None = None) -> Any:
    return field(default=default, metadata={"help": help, "low": low})


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """What decides a run, besides the data. Two dials matter most: `size` and `every`."""

    policy: str = _setting(
        "last",
        "Which interactions stay: last, last-distinct, reservoir, mix:M, last-top:M, frequent, "
        "hardest, influence, all; or what is learned: learned, dips, dips@1; or "
        "package.module:Class.",
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
    repeat_feature: int = _setting(
        -1,
        "1: a kept item also speaks for itself, as it may come back, the more the oftener it was "
        "met (dot with softmax, gru, sasrec); 0: only for what is like it; -1: 1 where a tenth of "
        "the training events are repeats.",
        -1,
    )
    filter_sketch: int = _setting(
        -1,
        "1: items that were read rank last, as they do not come back; gru and sasrec learn how far "
        "down; 0: not; -1: 1 where fewer than one in a thousand of the training events are "
        "repeats.",
        -1,
    )
    cosine: int = _setting(
        -1,
        "1: scores are cosines times a learned heat, and items that share users start side by side "
        "(gru, sasrec); 0: scores are products, and items start by chance; -1: 1 with softmax, "
        "unless items come back.",
        -1,
    )
    recency_decay: int = _setting(
        -1,
        "1: what was kept long ago counts less as it is read, how much is learned (dot with "
        "softmax); 0: all alike; -1: 1 where it can.",
        -1,
    )
    separate_input: int = _setting(
        -1,
        "1: a kept item has a vector of its own for what it tells of the items to come (dot with "
        "softmax); 0: it tells that it was chosen; -1: 1 where it can and items do not come back.",
        -1,
    )
    inner_steps: int = _setting(10, "Gradient steps that adapt a user to the sketch.", 1)
    inner_lr: float = _setting(
        0.1,
        "Step size of the inner loop (alpha); -1: 1 where items are predicted that do not come "
        "back, else 0.2.",
        -1,
    )
    prior_penalty: float = _setting(
        0.0, "Weight of the pull towards the shared prior (R of Eq. 2).", 0
    )
    learning_rate: float = _setting(1e-2, "Adam's step size at the start; it falls as a cosine.", 0)
    weight_decay: float = _setting(
        -1.0,
        "L2 penalty on vectors, not on biases; -1 chooses by how much is known of an item.",
        -1,
    )
    user_lr: float = _setting(
        0.0, "Step size of the user prior by SGD with momentum; 0 leaves it to Adam.", 0
    )
    lr_schedule: str = _setting("cosine", "How rates fall: as a cosine to 0, or constant.")
    batch: int = _setting(0, "Predictions per gradient step; 0 chooses by the size of the data.", 0)
    epochs: int = _setting(16, "Passes over the training users.", 1)
    patience: int = _setting(4, "Stop after this many epochs without a better validation.", 1)
    resketch_epochs: int = _setting(
        1, "Epochs between walks of policies that ask the recommender.", 1
    )
    users: int = _setting(0, "Users that walk together before parameters move; 0 means all.", 0)
    walks: int = _setting(
        1,
        "TrainingRollouts in an epoch, a company of users each (see users); 0 chooses by the data.",
        0,
    )
    stretch: int = _setting(
        0, "Steps that they walk before parameters move; 0 means whole histories.", 0
    )
    policy_lr: float = _setting(3e-3, "Adam's step size for a policy that learns.", 0)
    policy_weight_decay: float = _setting(0.0, "L2 penalty on a policy that learns.", 0)
    policy_batch_size: int = _setting(
        0, "Predictions per gradient step of the policy; 0 chooses by the size of the data.", 0
    )
    policy_warmup_epochs: int = _setting(1, "Epochs before the policy begins to learn.", 0)
    policy_freeze_epochs: int = _setting(
        2, "Last epochs in which the policy does not learn any more.", 0
    )
    residual: int = _setting(
        -1,
        "1: learned sees how far off each prediction was; 0: not; -1: where ratings are predicted.",
        -1,
    )
    predicted_score: int = _setting(
        -1,
        "1: learned sees what the recommender expects of each, roughly, in place of the residual, "
        "and starts with it; 0: not; -1: 1 where what was read is struck out (dot with softmax).",
        -1,
    )
    revert_tolerance: float = _setting(
        0.0, "Undo an epoch of the policy that makes validation worse by this share; 0 never.", 0
    )
    baseline: str = _setting(
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
    dropped_candidates: int = _setting(4, "Dropped interactions that survival still follows.", 0)
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
            if item.type == "float":  # 0 is a number, too
                object.__setattr__(self, item.name, float(value))
            if low is not None and not value >= low:
                raise ConfigError(f"{item.name} is {value}: it must be at least {low:g}")
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed and not (OWN_CLASS in allowed and ":" in value):
                known = ", ".join(map(str, allowed))
                raise ConfigError(f"{name} is '{value}': choose one of {known}")
        for name in ("inner_lr", "weight_decay"):
            if -1 < getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: -1, or at least 0")
        object.__setattr__(self, "periods", tuple(self.periods))
        Schedule(self.periods or (self.every,))

    @property
    def baselines(self) -> list[str]:
        """Policies to train beside."""
        return [name.strip() for name in self.baseline.split(",") if name.strip()]

    @property
    def schedule(self) -> Schedule:
        """When the sketch is refreshed."""
        return Schedule(self.periods or (self.every,))

    def implicit(self, explicit_data: bool) -> bool:
        """Whether the task is to predict items: as given, or as the data has it."""
        return self.task == "implicit" or (self.task == "auto" and not explicit_data)

    def fitted(
        self, rows: int, users: int, items: int, *, implicit: bool, repeats: float = 0.0
    ) -> TrainConfig:
        """The same with all decided that depends on the training data: `rows` are predictions.

        Small data take small batches, so that an epoch has its 32 steps, the policy's 64. `repeats`
        is the share of events with an item that the user had before.
        """
        narrow = WIDEST_IMPLICIT if implicit else WIDEST
        batch = self.batch or max(64, min(_power_of_two(rows // 32), narrow))
        wide = WIDEST if implicit else 4 * WIDEST
        policy_batch_size = self.policy_batch_size or max(256, min(_power_of_two(rows // 64), wide))
        least = USER_BATCH_IMPLICIT if implicit else USER_BATCH
        walks = self.walks or max(1, min(rows // least, MOST_WALKS))
        user_batch = self.users or (-(-users // walks) if walks > 1 else 0)
        back = self.repeat_feature
        if back < 0:
            back = int(self.copies(implicit) and repeats >= OFTEN and self.filter_sketch < 1)
        struck, alike = self.filter_sketch, self.cosine
        if struck < 0:
            struck = int(implicit and not back and repeats < RARELY)
        if alike < 0:
            alike = int(self.orders(implicit) and not back and self.loss in ("auto", "softmax"))
        once = implicit and not back
        decay, rate = self.weight_decay, self.inner_lr
        if decay < 0:
            most = MOST_DECAY_BACK if back else MOST_DECAY_ONCE if once else MOST_DECAY
            none = self.recommender in IN_ORDER and not back  # dropout is enough for them
            known = min(KNOWN * items, PLENTY) if once else KNOWN * items
            decay = 0.0 if none else min(known / max(1, rows), most)
        if rate < 0:
            rate = RATE_ONCE if once and self.remembers(implicit) else RATE
        reads = int(self.remembers(implicit))
        recency_decay = reads if self.recency_decay < 0 else self.recency_decay
        separate_input = int(reads and not back) if self.separate_input < 0 else self.separate_input
        told = int(self.uses_residuals(implicit))
        predicted_score = (
            int(reads and struck and not self.prior_penalty)
            if self.predicted_score < 0
            else self.predicted_score
        )
        baselines = self.baselines
        if "last" in baselines:
            same = AS_LAST if implicit and repeats < RARELY else ()
            poor = () if predicted_score and self.size > NEWEST else (LAST_TOP,)
            baselines = [name for name in baselines if name not in (*same, *poor)]
        return self.but(
            batch=batch, policy_batch_size=policy_batch_size, users=user_batch, weight_decay=decay,
            inner_lr=rate, repeat_feature=back, recency_decay=recency_decay, separate_input=separate_input, residual=told,
            filter_sketch=struck, cosine=alike, predicted_score=predicted_score, baseline=",".join(baselines),
        )  # fmt: skip

    def uses_residuals(self, implicit: bool) -> bool:
        """Whether `learned` sees residuals: as given, or where they are cheap to find."""
        return self.residual > 0 or (self.residual < 0 and not implicit)

    def copies(self, implicit: bool) -> bool:
        """Whether `repeat_feature` is there: what remembers, and what reads in order."""
        return self.remembers(implicit) or self.orders(implicit)

    def orders(self, implicit: bool) -> bool:
        """Whether `cosine` is there: what reads in order."""
        return implicit and self.recommender in IN_ORDER

    def remembers(self, implicit: bool) -> bool:
        """Whether `recency_decay` and `separate_input` are there: the dot product with a softmax over all."""
        whole = implicit and self.loss in ("auto", "softmax") and not self.negatives
        return whole and self.recommender == "dot"

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

USER_BATCH, USER_BATCH_IMPLICIT, MOST_WALKS = 15_000, 6_000, 4
"""Where walks are not given: at least so many predictions in each, and no more walks than this.

A policy that moves several times in an epoch keeps the recommender from falling behind; but its
steps come from fewer users each, and ratings tell it less than rankings do (LOG.md).
"""
OFTEN = 0.1
"""Where it is not given: items come back, if so many of the events are repeats."""
RARELY = 1e-3
"""Where it is not given: items never come back, if fewer of the events are repeats."""
AS_LAST = ("last-distinct", "frequent")
"""Where items never come back these keep what `last` keeps: one rival is enough."""
LAST_TOP = f"last-top:{NEWEST}"
"""A rival where `learned` starts like it: in larger sketches, where items never come back."""
KNOWN, PLENTY, MOST_DECAY, MOST_DECAY_ONCE, MOST_DECAY_BACK = 0.1, 55.0, 3e-3, 1e-3, 3e-2
"""Where decay is not given it is this, shared among the ratings of an item, and no more.

Less where items are predicted that do not come back, and no more for many items than for some: all
that is known is how they are alike. More
where they do: they speak for themselves, and vectors would learn the few who train by heart.
"""
RATE, RATE_ONCE = 0.2, 1.0
"""The inner rate where it is not given; and where items are predicted that do not come back."""


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
    "recommender": ("dot", "mlp", *IN_ORDER, OWN_CLASS),
    "split": ("users", "time"),
    "lr_schedule": ("cosine", "constant"),
    "credit": ("identity", "discount", "survival"),
    "estimator": ESTIMATORS,
    **dict.fromkeys(
        (
            "repeat_feature",
            "filter_sketch",
            "cosine",
            "recency_decay",
            "separate_input",
            "residual",
            "predicted_score",
        ),
        (-1, 0, 1),
    ),
}
