"""Declare the settings of recommenders, each with its sentence for `--help`.

A setting is declared here alone. It becomes a flag (`training.config.ModelConfig`), a field of the
stored specification (`RecommenderSpec`), and an argument of every constructor that names it. This
file imports no torch, as `--help` is made from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

EXPLICIT = ("mse", "bce", "cce")
"""Names of the losses that predict ratings."""
IMPLICIT = ("softmax", "bpr", "top1", "bpr-max", "top1-max")
"""Names of the losses that predict items."""
SEQUENTIAL = ("gru", "sasrec")
"""Names of the recommenders that read items in order."""


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] = (),
    basic: bool = False,
) -> Any:
    """Declare one setting, as a field of a dataclass.

    Args:
        default: Its value where nothing is given; None: decided from the data.
        help: One sentence for users.
        low: The least value.
        high: The largest value.
        choices: The allowed values; none: any.
        basic: Whether `--help` shows it among the first settings.
    """
    about = {"help": help, "low": low, "high": high, "choices": tuple(choices), "basic": basic}
    return field(default=default, metadata=about)


@dataclass(frozen=True, kw_only=True)
class RecommenderSettings:
    """Settings that constructors of recommenders name. None: the constructor's own default."""

    dim: int = setting(None, "Dimension of user and item embeddings.", low=1)
    negatives: int | None = setting(
        None,
        "Sampled negative items in a step. Default: all items for softmax, or 2,048 of more than "
        "50,000; 256 for other implicit losses.",
        low=1,
    )
    tie_embeddings: bool = setting(
        None,
        "Read and score items with the same embedding. Off: a separate input embedding (dot with "
        "softmax, gru). Default: off for dot with softmax if items do not repeat.",
    )
    repeat_feature: bool = setting(
        None,
        "Add an item-id feature weighted by repeat count. Default: on if at least 10 % of training "
        "events are repeats (dot with softmax, gru, sasrec).",
    )
    filter_sketch: bool = setting(
        None,
        "Filter items of the sketch from the ranking. Default: on if fewer than one in a thousand "
        "training events are repeats, unless filter_seen is on.",
    )
    filter_seen: bool = setting(
        False,
        "Filter everything that the user has met from training loss and ranking (softmax). For "
        "data where items do not repeat.",
    )
    cosine: bool = setting(
        None,
        "Score by cosine similarity times a learned logit scale (gru, sasrec). Default: on with "
        "softmax, unless items repeat.",
    )
    recency_decay: bool = setting(
        None,
        "Let entry weights decay with age, at a learned rate. Default: on for dot with softmax.",
    )
    inner_loss: str | None = setting(
        None,
        "Loss of the inner loop for clicks (dot): linearised, whose steps do not sum over all "
        "items, or softmax, as in the paper. Default: linearised with loss softmax.",
        choices=("linearised", "softmax"),
    )
    inner_steps: int = setting(10, "Gradient steps that adapt a user to the sketch.", low=1)
    inner_lr: float = setting(None, "Learning rate of the inner loop (alpha).", low=0)
    prior_penalty: float = setting(
        0.0, "Weight of the penalty on the distance to the user prior (R of Eq. 2).", low=0
    )
