"""Decide every setting that was left open, from the data and the other settings.

All rules stand in one table, `RULES`. For each setting that is None the first rule whose condition
holds gives the value and the reason. Rules are applied from top to bottom, so a condition may read
what stands above it. No setting of the recommender or of its training depends on the policy: a
policy and its baselines differ in the policy alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from dips.policy.registry import NEWEST, initial_half_life
from dips.policy.settings import BEST_START, LEARNED, PRETRAINED
from dips.recommender.losses import NEGATIVES, SAMPLED_LOSSES
from dips.recommender.settings import SEQUENTIAL
from dips.training.config import TrainConfig

REPEATS = 0.1
"""Share of repeats among the training events from which items count as repeating."""
MANY_ITEMS = 50_000
"""With more items than this, the softmax of training is over sampled items."""
SOFTMAX_NEGATIVES = 2048
"""Sampled items of the softmax."""
CLICK_STEPS = 2000
"""Steps of a dot product with softmax; LOG.md, 2026-11-17."""
REPEAT_STEPS = 400
"""The same where items repeat: users are memorised sooner."""


class DataSummary(NamedTuple):
    """What rules know about the training data."""

    rows: int
    """Predictions in an epoch."""
    users: int
    items: int
    """Items that training users have; the catalogue may have more."""
    explicit: bool
    """Whether there are ratings."""
    repeats: float = 0.0
    """Share of events whose item the user had before; 0 where ratings are predicted."""
    whole_histories: bool = True
    """Whether every event of every user is predicted."""


@dataclass(frozen=True)
class Case:
    """The settings as far as they are decided, and the data."""

    config: TrainConfig
    data: DataSummary

    @property
    def explicit(self) -> bool:
        """Whether ratings are predicted."""
        return not self.config.model.implicit

    @property
    def implicit(self) -> bool:
        """Whether items are predicted."""
        return self.config.model.implicit

    @property
    def no_repeats(self) -> bool:
        """Whether items are predicted, without the item-id feature for repeats."""
        return self.implicit and not self.config.model.repeat_feature

    @property
    def filters(self) -> bool:
        """Whether items of the sketch are filtered, alone or with all seen items."""
        return bool(self.config.model.filter_sketch) or self.config.model.filter_seen

    @property
    def softmax_dot(self) -> bool:
        """Whether it is the dot product with a softmax and an inner loop in closed form."""
        return self.config.model.softmax_dot

    @property
    def dot_with_softmax(self) -> bool:
        """Whether it is the dot product with a softmax."""
        return self.config.model.loss == "softmax" and self.config.model.recommender == "dot"

    @property
    def sequential(self) -> bool:
        """Whether items are read in order, and predicted."""
        return self.config.model.sequential

    @property
    def pairwise(self) -> bool:
        """Whether each pair of user and item has a prediction of its own: mlp and own classes."""
        return self.implicit and self.config.model.recommender not in ("dot", *SEQUENTIAL)

    @property
    def learned(self) -> bool:
        """Whether the policy is `learned`."""
        return self.config.sketch.policy == LEARNED

    @property
    def starts_at_last(self) -> bool:
        """Whether `learned` starts, or first starts, at `last`."""
        return self.config.policy_training.initial_policy in ("last", BEST_START)

    @property
    def reads_residuals(self) -> bool:
        """Whether the policy is `learned` on ratings, and reads residuals as `hardest:H` does."""
        return self.learned and self.explicit and self.config.policy_training.residual is not False

    @property
    def has_baselines(self) -> bool:
        """Whether baselines are trained beside the policy: `learned` and `pretrained`."""
        return self.learned or self.config.sketch.policy == PRETRAINED


class Rule(NamedTuple):
    """One row of the table."""

    setting: str
    holds: Callable[[Case], bool]
    value: Any
    """The value, or a function of the case."""
    reason: str


class Decision(NamedTuple):
    """A setting that was decided, and why."""

    setting: str
    value: Any
    reason: str


class Resolved(NamedTuple):
    """Settings without anything left open."""

    config: TrainConfig
    decisions: list[Decision]


def resolve(config: TrainConfig, data: DataSummary) -> Resolved:
    """Return the settings with every open one decided, and the decisions in order.

    Args:
        config: Settings as they were given; None is open.
        data: The summary of the training data.

    >>> found = resolve(TrainConfig(), DataSummary(1000, 10, 50, explicit=True))
    >>> found.config.model.loss, found.decisions[0]
    ('mse', Decision(setting='task', value='explicit', reason='the data has ratings'))
    """
    decisions: list[Decision] = []
    for rule in RULES:
        if config[rule.setting] is not None:
            continue
        case = Case(config, data)
        if not rule.holds(case):
            continue
        value = rule.value(case) if callable(rule.value) else rule.value
        if value is None:
            continue
        config = config.but(**{rule.setting: value})
        decisions.append(Decision(rule.setting, config[rule.setting], rule.reason))
    kept = _distinct_baselines(Case(config, data))
    if kept != config.policy_training.baselines:
        config = config.but(baselines=kept)
        reason = "baselines that keep what `last` keeps on this data are left out"
        decisions.append(Decision("baselines", kept, reason))
    return Resolved(config, decisions)


def _always(case: Case) -> bool:
    return True


def _power_of_two(number: int) -> int:
    """Return the largest power of two up to a number, at least 1."""
    return 1 << max(0, number.bit_length() - 1)


def _batch_size(case: Case) -> int:
    """Return a batch size that gives an epoch about 32 steps."""
    return max(64, min(_power_of_two(case.data.rows // 32), 1024 if case.implicit else 4096))


def _policy_batch_size(case: Case) -> int:
    """Return a batch size that gives an epoch of the policy about 64 steps."""
    return max(256, min(_power_of_two(case.data.rows // 64), 4096 if case.implicit else 16384))


def _inner_lr(case: Case) -> float:
    """Return 0.02 times the square root of the events per item, between 0.05 and 0.4.

    A large inner learning rate works like little weight decay: item vectors may stay small. The
    more events an item has, the less decay is best (LOG.md, 2026-11-17).
    """
    events = case.data.rows / max(1, case.data.items)
    return round(min(max(0.02 * math.sqrt(events), 0.05), 0.4), 2)


def _epochs(case: Case) -> int:
    """Return the epochs that make about so many steps as clicks need: at least 4, at most 16."""
    steps = max(1, case.data.rows // (case.config.training.batch_size or 1))
    wanted = REPEAT_STEPS if case.config.model.repeat_feature else CLICK_STEPS
    return max(4, min(-(-wanted // steps), 16))


def _freeze_epochs(case: Case) -> int:
    """Return a quarter of the epochs: at least 1, at most 4."""
    return max(1, min((case.config.training.epochs or 0) // 4, 4))


def _user_batches(case: Case) -> int:
    """Return how many user batches have at least 15,000 (implicit: 6,000) predictions; at most 4.

    A policy that is updated several times in an epoch keeps the recommender from falling behind.
    Its updates then come from fewer users each.
    """
    return max(1, min(case.data.rows // (6_000 if case.implicit else 15_000), 4))


def _user_batch(case: Case) -> int | None:
    """Return the users in one of several batches; None: all users at once."""
    count = case.config.training.user_batches_per_epoch or 1
    return -(-case.data.users // count) if count > 1 else None


def _weight_decay(case: Case) -> float:
    """Return 0.1 shared among the events of an item, bounded from above.

    Items that repeat may be memorised by their embedding, so the bound is higher there. For clicks
    the constants were chosen on validation users (LOG.md, 2026-11-17).
    """
    rows, share, bound = max(1, case.data.rows), 0.1 * case.data.items, 3e-3
    if case.config.model.repeat_feature:
        rare = case.config.model.inner_loss == "linearised" and rows < 30 * case.data.items
        share, bound = (3 if rare else 1) * share, 3e-2
    elif case.config.model.inner_loss == "linearised":
        share, bound = 400.0, 2e-2 if rows >= 10 * case.data.items else 5e-3  # rare items need less
    elif case.implicit:
        share, bound = min(share, 55.0), 1e-3
    return min(share / rows, bound)


def _baselines_of_ratings(case: Case) -> tuple[str, ...]:
    return ("last", f"hardest:{initial_half_life(case.config.sketch.size)}")


LAST_TOP = f"last-top:{NEWEST}"
"""A baseline for larger sketches where `learned` starts from predicted scores."""


def _distinct_baselines(case: Case) -> tuple[str, ...]:
    """Return the baselines without those that equal another one on this data."""
    names = case.config.policy_training.baselines or ()
    if "last" not in names:
        return names
    same = ("last-distinct", "frequent") if case.implicit and case.data.repeats < 1e-3 else ()
    starts = case.config.policy_training.predicted_score and case.config.sketch.size > NEWEST
    left_out = (*same, *(() if starts else (LAST_TOP,)))
    return tuple(name for name in names if name not in left_out)


RULES: tuple[Rule, ...] = (
    Rule("task", lambda c: c.data.explicit, "explicit", "the data has ratings"),
    Rule("task", _always, "implicit", "the data has no ratings"),
    Rule("loss", lambda c: c.explicit, "mse", "ratings are predicted"),
    Rule("loss", _always, "softmax", "items are predicted"),
    Rule("inner_loss", lambda c: c.dot_with_softmax, "linearised",
         "dot with softmax: steps that do not sum over all items"),
    Rule("negatives", lambda c: c.config.model.loss in SAMPLED_LOSSES, NEGATIVES,
         "the loss compares an item with sampled ones"),
    Rule("negatives",
         lambda c: c.config.model.inner_loss == "linearised" and c.data.items > MANY_ITEMS,
         SOFTMAX_NEGATIVES, f"more than {MANY_ITEMS:,} items: sampled, with log-q correction"),
    Rule("dim", lambda c: c.sequential, 96, "gru and sasrec"),
    Rule("dim", _always, 32, "default"),
    Rule("dropout", lambda c: c.sequential, 0.25, "gru and sasrec"),
    Rule("dropout", _always, 0.1, "default"),
    Rule("repeat_feature",
         lambda c: (c.softmax_dot or c.sequential) and c.data.repeats >= REPEATS
         and not c.config.model.filter_sketch,
         True, "at least 10 % of the training events are repeats"),
    Rule("repeat_feature", _always, False, "fewer than 10 % repeats, or not supported here"),
    Rule("filter_sketch", lambda c: c.config.model.filter_seen, False,
         "filter_seen: items of the sketch are filtered with all others that were seen"),
    Rule("filter_sketch", lambda c: c.no_repeats and c.data.repeats < 1e-3, True,
         "fewer than one in a thousand training events are repeats"),
    Rule("filter_sketch", _always, False, "items repeat, or ratings are predicted"),
    Rule("cosine", lambda c: c.sequential and c.no_repeats and c.config.model.loss == "softmax",
         True, "gru and sasrec with softmax, items do not repeat"),
    Rule("cosine", _always, False, "default"),
    Rule("recency_decay", lambda c: c.softmax_dot, True, "dot with softmax over all items"),
    Rule("recency_decay", _always, False, "not supported here"),
    Rule("tie_embeddings", lambda c: c.softmax_dot and c.no_repeats, False,
         "dot with softmax, items do not repeat"),
    Rule("tie_embeddings", _always, True, "default"),
    Rule("inner_lr", lambda c: c.softmax_dot, 0.5, "dot with softmax"),
    Rule("inner_lr", lambda c: c.implicit, 0.2, "items are predicted"),
    Rule("inner_lr", _always, _inner_lr, "by events per item"),
    Rule("learning_rate", lambda c: c.implicit and c.config.model.recommender == "sasrec", 5e-3,
         "sasrec"),
    Rule("learning_rate", _always, 1e-2, "default"),
    Rule("weight_decay", lambda c: c.pairwise, 1e-3, "implicit task with mlp or an own class"),
    Rule("weight_decay",
         lambda c: c.config.model.recommender in SEQUENTIAL and not c.config.model.repeat_feature,
         0.0, "gru and sasrec use dropout instead"),
    Rule("weight_decay", _always, _weight_decay, "by events per item"),
    Rule("batch_size", lambda c: c.pairwise, 32, "implicit task with mlp or an own class"),
    Rule("batch_size", _always, _batch_size, "about 32 steps in an epoch"),
    Rule("epochs", lambda c: c.softmax_dot and bool(c.config.model.repeat_feature), _epochs,
         f"about {REPEAT_STEPS:,} steps, items repeat"),
    Rule("epochs", lambda c: c.softmax_dot, _epochs, f"about {CLICK_STEPS:,} steps"),
    Rule("epochs", lambda c: c.sequential, 16, "gru and sasrec"),
    Rule("epochs", _always, 20, "default"),
    Rule("patience", lambda c: c.sequential, 4, "gru and sasrec"),
    Rule("patience", _always, 20, "default: the best of all epochs"),
    Rule("user_batches_per_epoch", lambda c: c.sequential or not c.data.whole_histories, 1,
         "gru and sasrec, or histories that are predicted in part"),
    Rule("user_batches_per_epoch", _always, _user_batches, "by predictions in a batch of users"),
    Rule("user_batch", _always, _user_batch, "users divided by user_batches_per_epoch"),
    Rule("policy_batch_size", _always, _policy_batch_size, "about 64 steps in an epoch"),
    Rule("initial_policy", lambda c: c.reads_residuals, BEST_START,
         "from `last` and from a rule; the better one on validation is kept"),
    Rule("initial_policy", _always, "rule", "default"),
    Rule("policy_lr", lambda c: c.learned and not c.starts_at_last, 1e-3, "start at a rule"),
    Rule("policy_lr", lambda c: c.reads_residuals, 3e-3, "start at `last`; 0.001 at the rule"),
    Rule("policy_lr", _always, 3e-3, "default"),
    Rule("policy_freeze_epochs", lambda c: c.learned, _freeze_epochs,
         "learned: a quarter of the epochs, at most 4"),
    Rule("policy_freeze_epochs", _always, 2, "default"),
    Rule("residual", lambda c: c.explicit, True, "ratings are predicted"),
    Rule("residual", _always, False, "items are predicted"),
    Rule("predicted_score",
         lambda c: c.softmax_dot and c.filters and not c.config.model.prior_penalty,
         True, "items of the sketch are filtered, dot with softmax"),
    Rule("predicted_score", _always, False, "default"),
    Rule("queue", lambda c: c.config.sketch.policy == "dips", 100, "dips"),
    Rule("queue", _always, 50, "default"),
    Rule("revert_tolerance", lambda c: c.learned, 0.15, "learned"),
    Rule("revert_tolerance", _always, float("inf"), "default: never"),
    Rule("baselines", lambda c: c.has_baselines and c.explicit, _baselines_of_ratings,
         "learned or pretrained: `last`, and the rule from which `learned` starts"),
    Rule("baselines", lambda c: c.has_baselines, ("last", "frequent", LAST_TOP),
         "learned or pretrained, items are predicted"),
    Rule("baselines", _always, (), "rules have no baselines"),
)  # fmt: skip
"""Condition, setting, value and reason of everything that is decided from the data."""
