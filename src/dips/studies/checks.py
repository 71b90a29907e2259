"""Prepare a run before it starts: split, device, recommender, policy; refuse what cannot work."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TypeVar

import numpy as np
import torch

from dips.data.interactions import Interactions
from dips.data.side_information import SideInformation
from dips.data.splitting import FRACTIONS, Parts, by_date, by_fold, by_time
from dips.errors import ConfigError, DataError, DataWarning, PluginError
from dips.plugins.loading import describe_error
from dips.policy.registry import PolicySpec, learns
from dips.policy.settings import starts
from dips.recommender.registry import (
    RECOMMENDERS,
    RecommenderSpec,
    make_recommender,
)
from dips.recommender.sequential import Sequential
from dips.recommender.settings import EXPLICIT, IMPLICIT, RecommenderSettings
from dips.testing import check_policy, check_recommender
from dips.training.config import TrainConfig
from dips.training.estimators import check_combination
from dips.training.recipes import baseline_config
from dips.training.resolve import DataSummary, resolve
from dips.training.rollouts import policy_of

MOST = 0.5
"""Share of histories from which 'most' is said."""
T = TypeVar("T")


def split(data: Interactions, config: TrainConfig) -> Parts:
    """Return training, validation and test users, as the settings say.

    Raises:
        ConfigError: If a further fold of a split by time is asked for: there is one such split.
    """
    if config.training.split != "users" and config.training.fold:
        raise ConfigError(
            f"fold is {config.training.fold}: a split by time has no folds; leave --fold out"
        )
    if config.training.max_users and config.training.max_users < data.users:
        some = np.random.default_rng(0).permutation(data.users)[: config.training.max_users]
        data = data.select(np.sort(some))
    if config.training.split == "time":
        return by_time(data, FRACTIONS)
    if config.training.split == "date":
        return by_date(data, FRACTIONS)
    return by_fold(data, config.training.fold, seed=config.training.seed)


def data_summary(train: Interactions, config: TrainConfig) -> DataSummary:
    """Return what the rules of `dips.training.resolve` need to know about the training data."""
    implicit = config.model.task == "implicit" or (config.model.task is None and not train.explicit)
    return DataSummary(
        rows=int((train.lengths - train.warmup).sum()),
        users=train.users,
        items=len(np.unique(train.item[train.event_rows])),
        explicit=train.explicit,
        repeats=train.repeats if implicit else 0.0,
        whole_histories=not train.warmup.any(),
    )


def resolved(train: Interactions, config: TrainConfig) -> TrainConfig:
    """Return the settings with everything decided that depends on the training data."""
    return resolve(config, data_summary(train, config)).config


def device_of(config: TrainConfig) -> str:
    """Return the device that was asked for; by default CUDA where there is one.

    Raises:
        ConfigError: The name is unknown, or there is no such device.
    """
    device = config.training.device
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ConfigError(f"device '{device}': choose one of cpu, cuda, cuda:1")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"device '{device}': there is no CUDA device here; use cpu")
    return device


def side_information_of(train: Interactions, config: TrainConfig) -> SideInformation:
    """Return the side information that the settings name, with statistics of the training users.

    A recommender of the user predicts without it.
    """
    timed = not config.model.implicit and config.model.recommender in RECOMMENDERS
    return SideInformation.of(train, config.model.side, timed=timed)


def recommender_spec(train: Interactions, config: TrainConfig) -> RecommenderSpec:
    """Return the specification of the recommender for the data and the resolved settings.

    Raises:
        ConfigError: Settings contradict each other, the task or the data.
    """
    model = config.model
    _check_model(config)
    spec = RecommenderSpec(
        **{leaf.name: config[leaf.name] for leaf in fields(RecommenderSettings)},
        kind=model.recommender,
        loss=model.loss,
        items=train.items,
        side=replace(side_information_of(train, config), columns=()),
    )
    if model.implicit:
        return spec
    if train.rating is None:
        raise ConfigError(f"the explicit task needs ratings, and {train.name} has none")
    ratings = train.rating[train.event_rows]
    low, high = float(ratings.min()), float(ratings.max())
    stars = tuple(float(value) for value in np.unique(ratings)) if model.loss == "cce" else ()
    if len(stars) > 20:
        raise ConfigError(f"loss 'cce' needs star ratings; {train.name} has {len(stars)} values")
    if low == high and model.loss != "mse":
        raise ConfigError(
            f"loss '{model.loss}' needs two different ratings, and all of {train.name} are "
            f"{low:g}: predict items with --task implicit"
        )
    spec = replace(spec, low=low, high=high, rating_values=stars)
    if model.loss != "mse":  # logits: they have no unit
        return spec
    center, spread = rating_scale(train)
    return replace(spec, rating_center=center, rating_spread=spread)


def rating_scale(train: Interactions) -> tuple[float, float]:
    """Return mean and standard deviation of the training ratings; 0 and 1 without ratings.

    The standard deviation of equal ratings counts as 1.
    """
    if train.rating is None:
        return 0.0, 1.0
    ratings = train.rating[train.event_rows].astype(np.float64)
    lowest, highest = float(ratings.min()), float(ratings.max())
    if lowest == highest:
        return lowest, 1.0
    return float(ratings.mean()), float(ratings.std())


def _check_model(config: TrainConfig) -> None:
    """Refuse settings of the recommender that its task, loss or kind does not support."""
    model, full = config.model, "dot with the softmax over all items"
    if (model.loss in IMPLICIT) != model.implicit:
        other = _either(IMPLICIT if model.implicit else EXPLICIT)
        raise ConfigError(
            f"loss '{model.loss}' does not fit the task: use {other}, or change --task"
        )
    supported = {
        "negatives": (model.implicit, "the implicit task"),
        "filter_sketch": (model.implicit, "the implicit task"),
        "filter_seen": (model.loss == "softmax", "items predicted with loss softmax"),
        "recency_decay": (model.softmax_dot, full),
        "repeat_feature": (model.softmax_dot or model.sequential, f"{full}, gru or sasrec"),
        "cosine": (model.sequential, "items predicted by gru or sasrec"),
    }
    for name, (here, where) in supported.items():
        if config[name] and not here:
            flag = name.replace("_", "-")
            raise ConfigError(f"{name} is for {where}: leave --{flag} out")
    if model.inner_loss == "linearised" and not (model.implicit and model.recommender == "dot"):
        raise ConfigError(
            "inner_loss linearised is for items predicted by dot: leave --inner-loss out"
        )
    separate = model.softmax_dot or (model.implicit and model.recommender == "gru")
    if model.tie_embeddings is False and not separate:
        raise ConfigError(
            f"a separate input embedding is for {full}, or gru: leave --no-tie-embeddings out"
        )
    if model.repeat_feature and model.filter_sketch:
        raise ConfigError(
            "repeat_feature and filter_sketch contradict each other: items of the sketch may "
            "repeat, or they are filtered; leave one of them out"
        )
    if model.filter_seen and model.repeat_feature:
        raise ConfigError(
            "filter_seen is for data where items do not repeat, and repeat_feature is on: leave "
            "--filter-seen out, or add --no-repeat-feature"
        )
    if model.filter_seen and model.filter_sketch:
        raise ConfigError(
            "filter_seen filters the items of the sketch with all others: leave --filter-sketch out"
        )


def policy_spec(train: Interactions, config: TrainConfig) -> PolicySpec:
    """Return the specification of the policy for the data and the resolved settings."""
    center, spread = rating_scale(train)
    return PolicySpec(
        name=config.sketch.policy,
        size=config.sketch.size,
        damping=config.sketch.damping,
        items=train.items,
        initial=starts(config.policy_training.initial_policy)[0],
        residual=bool(config.policy_training.residual),
        predicted_score=bool(config.policy_training.predicted_score),
        repeat_feature=bool(config.model.repeat_feature),
        center=center,
        spread=spread,
        dropout=config.model.dropout or 0.0,
        side=side_information_of(train, config),
    )


def check(train: Interactions, config: TrainConfig) -> None:
    """Refuse settings that cannot work, before anything is written.

    Raises:
        ConfigError: Settings contradict each other, the task or the data.
        DataError: There is one item only.
        PluginError: A class of the user does not fit.

    Warns:
        DataWarning: The sketch size is larger than most histories.
    """
    if train.items < 2:
        raise DataError(
            f"{train.name}: there is a single item, '{train.item_ids[0]}', and a recommender "
            "chooses among many; check the column of items (--item-col)"
        )
    _check_settings(train, config)
    size, whole = config.sketch.size, float(np.mean(train.lengths <= config.sketch.size))
    if whole > MOST and not policy_of(resolved(train, config)).keeps_all:
        warnings.warn(
            f"K = {size} is at least the length of {100 * whole:.0f} % of the histories: their "
            "sketches keep everything; choose a smaller K (half of the histories have at most "
            f"{np.median(train.lengths):g} interactions)",
            DataWarning,
            stacklevel=3,
        )


def _check_settings(train: Interactions, config: TrainConfig) -> None:
    """Refuse settings of a run and of its baselines that cannot work."""
    device_of(config)
    given, config = config, resolved(train, config)
    spec = recommender_spec(train, config)
    policy = policy_of(config)
    _check_ranges(config)
    model = make_recommender(spec, config.training.training_seed)
    if isinstance(model, Sequential):
        _check_sequential(config)
    if learns(policy):
        _check_learning(config)
    interleaved = config.training.user_batch or config.training.update_interval
    if train.warmup.any() and (learns(policy) or interleaved):
        raise ConfigError(
            f"{train.name} has users whose first interactions are not predicted: learned policies, "
            "user_batch and update_interval need training users with whole histories"
        )
    if not type(policy).__module__.startswith("dips."):
        _check_own("policy", config.sketch.policy, check_policy, policy)
    if config.model.recommender not in RECOMMENDERS:
        _check_own("recommender", config.model.recommender, check_recommender, model)
    for name in config.policy_training.baselines:
        baseline = baseline_config(given, name)
        if policy_of(baseline).keeps_all:
            raise ConfigError(f"baseline '{name}' keeps everything, not K: leave it out")
        _check_settings(train, baseline)


def check_process_group(parts: Sequence[Interactions], config: TrainConfig, processes: int) -> None:
    """Refuse settings that several processes cannot train together."""
    if processes == 1:
        return
    for part in parts:
        if part.users < processes:
            raise ConfigError(
                f"{processes} processes share the users, and {part.name} has {part.users}: start "
                "fewer processes, or give every part more users"
            )
    if config.policy_training.estimator == "reinforce" and learns(policy_of(config)):
        raise ConfigError(
            "estimator 'reinforce' compares a loss with the mean of its whole batch, and a process "
            "has a part of it: train in one process, or choose another estimator"
        )


def _either(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _check_sequential(config: TrainConfig) -> None:
    """Refuse ratings: a recommender that reads in order predicts the next item."""
    if not config.model.implicit:
        raise ConfigError(
            f"recommender '{config.model.recommender}' predicts the next item, not ratings: "
            "add --task implicit"
        )


def _check_ranges(config: TrainConfig) -> None:
    """Refuse shares above their upper bound."""
    if (config.model.dropout or 0.0) >= 1:
        raise ConfigError(f"dropout is {config.model.dropout:g}: it must be at least 0 and below 1")
    if config.policy_training.discount > 1:
        raise ConfigError(
            f"discount is {config.policy_training.discount:g}: it must be between 0 and 1"
        )


def _check_learning(config: TrainConfig) -> None:
    """Raise if the estimator does not support the credit, the periods or the selection."""
    settings, sketch = config.policy_training, config.sketch
    check_combination(
        settings.estimator, settings.credit, sketch.schedule.periods, sketch.selection
    )


def _check_own(kind: str, name: str, check: Callable[[T], None], made: T) -> None:
    """Run the checks of `dips.testing` on a class of the user."""
    try:
        check(made)
    except Exception as error:
        raise PluginError(f"{kind} '{name}' does not fit: {describe_error(error)}") from error
