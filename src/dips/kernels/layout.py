"""Features, constants and inputs of the kernels: plain tensors, no computation.

The torch networks, the numba loops and the Triton programs take counts, indices and constants from
this file. It knows nothing of policies, recommenders or compilers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FEATURES = (
    "rating",
    "signal",
    "log_age",
    "rank",
    "log_elapsed",
    "log_repeats",
    "newer_duplicates",
    "log_signal",
    "age",
)
"""Features of a candidate in the set network, in the order of its first layer's inputs.

| name | value |
|---|---|
| rating | (rating - center) / spread |
| signal | residual or predicted score; 0 where the network reads neither |
| log_age | log(1 + steps since the interaction) |
| rank | share of candidates that are newer |
| log_elapsed | log(1 + seconds since the interaction) / LOG_TIME_SCALE |
| log_repeats | log(1 + repeat count of the item while it was in the sketch) |
| newer_duplicates | number of newer candidates of the same item |
| log_signal | log(1 + absolute signal / SIGNAL_SCALE) |
| age | steps since the interaction, at most AGE_LIMIT, divided by AGE_SCALE |

The rule `hardest:H` is linear in `log_signal` and `age`, but for its limits.
"""
RATING = FEATURES.index("rating")
SIGNAL = FEATURES.index("signal")
LOG_AGE = FEATURES.index("log_age")
RANK = FEATURES.index("rank")
LOG_ELAPSED = FEATURES.index("log_elapsed")
LOG_REPEATS = FEATURES.index("log_repeats")
NEWER_DUPLICATES = FEATURES.index("newer_duplicates")
LOG_SIGNAL = FEATURES.index("log_signal")
AGE = FEATURES.index("age")

LOG_TIME_SCALE = 16.0
"""Divisor of the logarithm of elapsed seconds; about 100 days become 1."""
SIGNAL_SCALE = 0.0625
"""Signals far below this size count as equal in `log_signal`; a power of two, so exact."""
AGE_LIMIT, AGE_SCALE = 64, 8.0
"""Largest age of the feature `age`, in steps, and its divisor; a power of two, so exact."""
SCORE_LIMIT = 2.0**50
"""Scores are clipped to this size, so every candidate ranks above an empty slot."""
NEWEST_BONUS = 2.0**30
"""Score of the newest entry under `last-top`; larger than any predicted score."""

SET_NETWORK, PAPER_NETWORK, HARDEST, INFLUENCE, LAST_TOP = range(5)
LAST, RESERVOIR, MIX, LAST_DISTINCT, FREQUENT = range(5, 10)
"""Codes of the scorers: see `Scorer.code`."""
NO_SIGNAL, RESIDUAL, LOSS, PREDICTED_SCORE = range(4)
"""Codes of the signal that a scorer reads: see `Scorer.signal`."""


class RolloutInputs(NamedTuple):
    """Users of all runs, in run-major order, and the events that they share."""

    start: Tensor  # [rows] int64: first event
    length: Tensor  # [rows] int64: number of events
    warmup: Tensor  # [rows] int64: events before predictions are recorded
    first_row: Tensor  # [rows] int64: prediction t is recorded in row first_row + t
    refresh_count: Tensor  # [rows] int64: number of refreshes before the history ends
    refreshes: Tensor  # [refreshes, 3] int64: events seen, new events, predictions that follow
    item: Tensor  # [events] int64: row of the item in the item tables
    rating: Tensor  # [events] float32
    time: Tensor  # [events] int64: seconds
    key: Tensor  # [rows] int64: random priorities are derived from it


class RolloutState(NamedTuple):
    """Sketches that a rollout changes in place, and its records; None is not recorded."""

    position: Tensor  # [rows, size] int64: current sketch; full where a refresh is due
    repeats: Tensor  # [rows, size] int64
    events: Tensor  # [predictions, size] int32: sketch of each prediction
    event_repeats: Tensor  # [predictions, size] int32
    signal: Tensor | None  # [predictions, candidates] float32: on a refresh's first prediction
    event_scores: Tensor | None  # [predictions, size] float32
    scores: Tensor | None  # [rows, size] float32: scores of the current sketch


class SketchArrays(NamedTuple):
    """Sketches that arrivals change in place; empty slots come last, at position -1."""

    position: Tensor  # [users, size] int64
    item: Tensor  # [users, size] int64: item code
    rating: Tensor  # [users, size] float32
    time: Tensor  # [users, size] int64
    repeats: Tensor  # [users, size] int64
    side: Tensor  # [users, size] int64, or [0, 0]: not carried


class EventArrays(NamedTuple):
    """Interactions in the order in which they arrive."""

    item: Tensor  # [events] int64: item code
    rating: Tensor  # [events] float32
    time: Tensor  # [events] int64
    side: Tensor  # [events] int64, or [0]: not carried


class SetNetworkInputs(NamedTuple):
    """Candidates that a set network scores, in run-major order."""

    position: Tensor  # [rows, candidates] int64; -1 where empty
    item: Tensor  # [rows, candidates] int64
    rating: Tensor  # [rows, candidates] float32
    time: Tensor  # [rows, candidates] int64
    repeats: Tensor  # [rows, candidates] int64
    seen: Tensor  # [rows] int64
    weight: Tensor  # [rows, candidates] float64, on the fixed-point grid
    signal: Tensor  # [rows, candidates] float64
    embedding: Tensor  # [rows, candidates, dim] float64


class ResidualInputs(NamedTuple):
    """Sketches, and items whose residuals are computed from them, in run-major order."""

    sketch_item: Tensor  # [rows, size] int64; -1 where empty
    sketch_rating: Tensor  # [rows, size] float32, in the unit of the data
    item: Tensor  # [rows, n] int64
    rating: Tensor  # [rows, n] float32


class SquaredErrorModel(NamedTuple):
    """Dot products whose user vector is adapted by gradient descent on squared errors."""

    vectors: Tensor  # [runs, items, dim]
    intercept: Tensor  # [runs, items]: score of an item for a zero user vector
    prior: Tensor  # [runs, dim + 1]: initial user vector; the last entry is the user bias
    constants: Tensor  # [runs, 5 + size]: loading of the user bias, twice the prior penalty,
    # center and spread of ratings, and the inner learning rate for 0, 1, ... entries
    steps: int
    has_penalty: bool


class LinearisedSoftmaxModel(NamedTuple):
    """Dot products whose softmax is replaced by a quadratic around the initial user vector."""

    vectors: Tensor  # [runs, items, dim]
    intercept: Tensor  # [runs, items]: scores for the initial user vector
    direction: Tensor  # [runs, items, dim]: descent direction of an entry at the initial vector
    curvature: Tensor  # [runs, dim, dim]: symmetric
    curvature_bound: Tensor  # [runs]: at least the largest eigenvalue
    rate: Tensor  # [runs, 1 + size]: inner learning rate for 0, 1, ... entries
    age_weight: Tensor  # [runs, ages]: weight of an entry by age; the last also for older ones
    steps: int


class SetNetworkLayers(NamedTuple):
    """Parameters of set networks on the fixed-point grid, and tables of what items add."""

    scale: Tensor  # [runs, 3]: center and spread of ratings, slope per newer candidate
    item_weight: Tensor  # [runs, dim, hidden]: item vector to the first layer
    item_bias: Tensor  # [runs, hidden]
    item_direct: Tensor  # [runs, dim]: item vector to the score
    feature_weight: Tensor  # [runs, features, hidden]
    feature_direct: Tensor  # [runs, features]
    candidate_weight: Tensor  # [runs, hidden, hidden], inputs first
    context_weight: Tensor  # [runs, hidden, hidden], inputs first
    bias: Tensor  # [runs, hidden]: of the second layer
    output: Tensor  # [runs, hidden]
    logs: Tensor  # [any]: log1p of 0, 1, 2, ...
    table: Tensor  # [runs, tabled, hidden]: first layer of the first `tabled` items, with its bias
    table_direct: Tensor  # [runs, tabled]: their part of the score
    vectors: Tensor  # [runs, items, dim]: vectors of all items; needed beyond `tabled` items only


class PaperNetworkLayers(NamedTuple):
    """Parameters of the paper's network on the fixed-point grid.

    Unknown items, at row -1, use the last row of the item tables.
    """

    input_weight: Tensor  # [runs, items, hidden]
    input_bias: Tensor  # [runs, hidden]
    hidden_weight: Tensor  # [runs, hidden, hidden], inputs first
    hidden_bias: Tensor  # [runs, hidden]
    output_weight: Tensor  # [runs, items, hidden]
    output_bias: Tensor  # [runs, items]
    spread: Tensor  # [runs]: inputs are ratings divided by it


def _none(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


NO_SQUARED_ERROR = SquaredErrorModel(
    _none(1, 0, 0), _none(0, 0), _none(0, 0), _none(0, 0), 0, False
)
NO_LINEARISED_SOFTMAX = LinearisedSoftmaxModel(
    _none(1, 0, 0), _none(0, 0), _none(1, 0, 0), _none(1, 0, 0), _none(0), _none(0, 0),
    _none(0, 0), 0,
)  # fmt: skip
NO_SET_NETWORK = SetNetworkLayers(
    _none(0, 0), _none(1, 0, 0), _none(0, 0), _none(0, 0), _none(1, 0, 0), _none(0, 0),
    _none(1, 0, 0), _none(1, 0, 0), _none(1, 0), _none(0, 0), _none(0), _none(1, 0, 0),
    _none(0, 0), _none(1, 0, 0),
)  # fmt: skip
NO_PAPER_NETWORK = PaperNetworkLayers(
    _none(1, 0, 0), _none(0, 0), _none(1, 0, 0), _none(0, 0), _none(1, 0, 0), _none(0, 0), _none(0)
)
NO_DECAY = _none(0)


class Scorer(NamedTuple):
    """One policy of each run as kernels compute it; parts that it does not use are empty.

    All scorers have one type, so each kernel is compiled once.
    """

    code: int
    """SET_NETWORK, PAPER_NETWORK, HARDEST, ...: how candidates are scored."""
    runs: int
    signal: int = NO_SIGNAL
    """RESIDUAL, LOSS or PREDICTED_SCORE: what the signal model computes."""
    newest: int = 0
    """M of `mix:M` and `last-top:M`."""
    damping: float = 0.0
    """Added to the Hessian of `influence`."""
    decay: Tensor = NO_DECAY
    """[ages] factor of a score by age; the last also for older entries; empty: no half-life."""
    set_network: SetNetworkLayers = NO_SET_NETWORK
    paper_network: PaperNetworkLayers = NO_PAPER_NETWORK
    squared_error: SquaredErrorModel = NO_SQUARED_ERROR
    linearised_softmax: LinearisedSoftmaxModel = NO_LINEARISED_SOFTMAX

    @property
    def signal_model(self) -> SquaredErrorModel | LinearisedSoftmaxModel | None:
        """The recommender that computes the signal, if there is one."""
        if self.squared_error.vectors.numel():
            return self.squared_error
        return self.linearised_softmax if self.linearised_softmax.vectors.numel() else None
