"""What is decided before a run starts: parts, device, recommender. What cannot work is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch

from dips.data.interactions import Interactions, ragged
from dips.data.side_information import SideInformation, names_in
from dips.data.splitting import Parts, by_time, by_users
from dips.errors import ConfigError, PluginError
from dips.numerics.straight_through import check_estimator
from dips.plugins.loading import in_words
from dips.policy.registry import PolicySpec, learns
from dips.recommender.losses import CONTRASTS, EXPLICIT, IMPLICIT, NEGATIVES
from dips.recommender.registry import FORMS, RecommenderSpec, embedding_width, make_recommender
from dips.recommender.sequential import Sequential
from dips.testing import check_policy, check_recommender
from dips.training.config import TrainConfig
from dips.training.rollouts import policy_of

T = TypeVar("T")
FRACTIONS = (0.6, 0.2, 0.2)


def split(data: Interactions, config: TrainConfig) -> Parts:
    """The three parts that a run's settings name."""
    if config.max_users and config.max_users < data.users:
        some = np.random.default_rng(0).permutation(data.users)[: config.max_users]
        data = data.select(np.sort(some))
    if config.split == "time":
        return by_time(data, FRACTIONS)
    return by_users(data, FRACTIONS, seed=config.seed)


def fitted(train: Interactions, config: TrainConfig) -> TrainConfig:
    """The settings with everything decided that depends on the data."""
    rows = int((train.lengths - train.warmup).sum())
    implicit = config.implicit(train.explicit)
    repeats = train.repeats if implicit else 0.0
    return config.fitted(rows, train.users, train.items, implicit=implicit, repeats=repeats)


def device_of(config: TrainConfig) -> str:
    """Where to compute: what was asked for, if it is there."""
    if config.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", config.device):
        raise ConfigError(f"device '{config.device}': choose one of auto, cpu, cuda, cuda:1")
    if config.device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            f"device '{config.device}': there is no CUDA device here; use cpu or auto"
        )
    return config.device


def sides_of(train: Interactions, config: TrainConfig) -> SideInformation:
    """The side information that the settings ask for, as the data has it.

    A recommender of the user's own predicts without it.
    """
    timed = not config.implicit(train.explicit) and config.recommender in FORMS
    return SideInformation.of(train, names_in(config.side), timed=timed)


def describe(train: Interactions, config: TrainConfig) -> RecommenderSpec:
    """The recommender that fits the data and the settings."""
    implicit = config.implicit(train.explicit)
    loss = config.loss if config.loss != "auto" else ("softmax" if implicit else "mse")
    if (loss in IMPLICIT) != implicit:
        other = _either(IMPLICIT if implicit else EXPLICIT)
        raise ConfigError(f"loss '{loss}' does not fit the task: use {other}, or change --task")
    if config.negatives and not implicit:
        raise ConfigError("negatives are for the implicit task: leave --negatives out")
    whole = "the dot product with the softmax over all items"
    for name in ("recency_decay", "separate_input"):
        if getattr(config, name) > 0 and not config.remembers(implicit):
            raise ConfigError(f"{name} is for {whole}: leave --{name} out")
    if config.repeat_feature > 0 and not config.copies(implicit):
        raise ConfigError(
            f"returning is for {whole}, a gru or a sasrec: leave --repeat-feature out"
        )
    if config.filter_sketch > 0 and not implicit:
        raise ConfigError("striking is for the implicit task: leave --filter-sketch out")
    if config.cosine > 0 and not config.orders(implicit):
        raise ConfigError("cosine is for items predicted by gru or sasrec: leave --cosine out")
    if config.repeat_feature > 0 and config.filter_sketch > 0:
        raise ConfigError(
            "returning and striking contradict each other: what was read comes back, or it does "
            "not; leave one of them out"
        )
    spec = RecommenderSpec(
        form=config.recommender,
        loss=loss,
        items=train.items,
        dim=config.dim,
        inner_lr=config.inner_lr,
        inner_steps=config.inner_steps,
        prior_penalty=config.prior_penalty,
        repeat_feature=config.repeat_feature > 0,
        recency_decay=config.recency_decay > 0,
        separate_input=config.separate_input > 0,
        filter_sketch=config.filter_sketch > 0,
        cosine=config.cosine > 0,
        negatives=config.negatives or (NEGATIVES if loss in CONTRASTS else 0),
        side=replace(sides_of(train, config), columns=()),
    )
    if implicit:
        return spec
    if train.rating is None:
        raise ConfigError(f"the explicit task needs ratings, and {train.name} has none")
    low, high = train.rating_range()
    ratings = train.rating[ragged(train.starts, train.lengths)]
    stars = tuple(float(value) for value in np.unique(train.rating)) if loss == "cce" else ()
    if len(stars) > 20:
        raise ConfigError(f"loss 'cce' needs star ratings; {train.name} has {len(stars)} values")
    offset = float(ratings.mean()) if loss == "mse" else 0.0
    return replace(spec, low=low, high=high, stars=stars, offset=offset)


def describe_policy(train: Interactions, config: TrainConfig) -> PolicySpec:
    """The policy that fits the data and the settings."""
    center, spread = 0.0, 1.0
    if not config.implicit(train.explicit) and train.rating is not None:
        ratings = train.rating[ragged(train.starts, train.lengths)]
        center, spread = float(ratings.mean()), max(float(ratings.std()), 1e-3)
    return PolicySpec(
        name=config.policy,
        size=config.size,
        damping=config.damping,
        items=train.items,
        dim=embedding_width(describe(train, config)),
        residual=config.uses_residuals(config.implicit(train.explicit)),
        predicted_score=config.predicted_score > 0,
        repeat_feature=config.repeat_feature > 0,
        center=center,
        spread=spread,
        dropout=config.dropout,
        side=sides_of(train, config),
    )


def check(train: Interactions, config: TrainConfig) -> None:
    """Refuse settings that cannot work, before anything is written."""
    device_of(config)
    suited = fitted(train, config)
    spec = describe(train, suited)
    policy = policy_of(config)
    _check_ranges(config)
    model = make_recommender(spec, config.seed)
    if isinstance(model, Sequential):
        _check_sequential(train, config)
    if learns(policy):
        _check_learning(config)
    live = config.users or config.stretch or config.walks > 1
    if train.warmup.any() and (learns(policy) or live):
        raise ConfigError(
            f"{train.name} counts some histories from their middle on: a policy that learns, and "
            "users, walks or stretch, need training users whose every interaction counts"
        )
    if not type(policy).__module__.startswith("dips."):
        _check_own("policy", config.policy, check_policy, policy)
    if config.recommender not in FORMS:
        _check_own("recommender", config.recommender, check_recommender, model)
    for name in suited.baselines:
        check(train, config.but(policy=name, baseline=""))


def check_process_group(parts: Sequence[Interactions], config: TrainConfig, processes: int) -> None:
    """Refuse what several processes cannot do together."""
    if processes == 1:
        return
    for part in parts:
        if part.users < processes:
            raise ConfigError(
                f"{processes} processes share the users, and {part.name} has {part.users}: start "
                "fewer processes, or give every part more users"
            )
    if config.estimator == "reinforce" and learns(policy_of(config)):
        raise ConfigError(
            "estimator 'reinforce' compares a loss with the mean of its whole batch, and a process "
            "has a part of it: train in one process, or choose another estimator"
        )


def _either(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _check_sequential(train: Interactions, config: TrainConfig) -> None:
    """What reads by recurrence predicts items, and has no inner loop to earn credit from."""
    if not config.implicit(train.explicit):
        raise ConfigError(
            f"recommender '{config.recommender}' predicts the next item, not ratings: "
            "add --task implicit"
        )
    if learns(policy_of(config)):
        raise ConfigError(
            f"policy '{config.policy}' learns from a recommender that adapts to a sketch: train it "
            f"with dot or mlp, or give recommender '{config.recommender}' another policy"
        )


def _check_ranges(config: TrainConfig) -> None:
    """Shares have an upper end too."""
    if not 0 <= config.dropout < 1:
        raise ConfigError(f"dropout is {config.dropout:g}: it must be at least 0 and below 1")
    if config.discount > 1:
        raise ConfigError(f"discount is {config.discount:g}: it must be between 0 and 1")


def _check_learning(config: TrainConfig) -> None:
    """Estimators do not go with every schedule, choice and credit."""
    check_estimator(config.estimator, config.schedule.periods, config.choice)
    if config.estimator == "reinforce" and config.credit == "survival":
        raise ConfigError(
            "estimator 'reinforce' learns from the losses themselves, and credit 'survival' needs "
            "their slopes: set credit = identity or discount"
        )


def _check_own(kind: str, name: str, check: Callable[[T], None], made: T) -> None:
    """What is of the user's own must keep what its check in `dips.testing` asks."""
    try:
        check(made)
    except Exception as error:
        raise PluginError(f"{kind} '{name}' does not fit: {in_words(error)}") from error
