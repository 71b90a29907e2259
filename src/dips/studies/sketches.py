"""Apply a trained model to data: the sketches or the predictions of all users, as columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dips.data.interactions import Interactions, ragged
from dips.errors import ConfigError, DataError
from dips.evaluation.progressive import predict
from dips.evaluation.scoring import roll_out
from dips.model.trained_model import TrainedModel
from dips.rollout.trace import StoredTrace
from dips.stream.users import EventColumns, make_stream


def reindex_items(trained: TrainedModel, data: Interactions) -> Interactions:
    """Return data with the item indices of a model; events of unknown items are left out.

    Raises:
        DataError: If the model knows none of the items.
    """
    if data.item_ids is trained.item_ids:
        return data
    known = trained.item_ids.index
    codes = np.array([known.get(name, -1) for name in data.item_ids], dtype=np.int32)
    if np.array_equal(codes, np.arange(len(trained.item_ids))):
        return replace(data, item_ids=trained.item_ids)
    places = ragged(data.starts, data.lengths)
    owner = np.repeat(np.arange(data.users), data.lengths)
    item = codes[data.item[places]]
    kept = item >= 0
    if not kept.any():
        raise DataError(
            f"{data.name}: none of its items are known to the run; is it the same data?"
        )
    lengths = np.bincount(owner[kept], minlength=data.users)
    early = np.arange(len(owner)) - np.repeat(np.cumsum(data.lengths) - data.lengths, data.lengths)
    warm = np.bincount(owner[kept & (early < data.warmup[owner])], minlength=data.users)
    whole = replace(
        data,
        item=item[kept],
        rating=None if data.rating is None else data.rating[places][kept],
        time=None if data.time is None else data.time[places][kept],
        side={name: column.take(places[kept]) for name, column in data.side.items()},
        starts=np.cumsum(lengths) - lengths,
        lengths=lengths,
        warmup=warm,
        item_ids=trained.item_ids,
        about={**data.about, "left_out": int((~kept).sum())},
    )
    return whole.select(np.flatnonzero(lengths > warm))


def sketch_columns(trained: TrainedModel, data: Interactions, *, at: str = "end") -> dict[str, Any]:
    """Return the sketches of all users as columns user, t, position, item, rating, score.

    The score is that of the last refresh; before the first refresh it is NaN.

    Args:
        trained: The model.
        data: Any data; items are matched by original id.
        at: "end": after each user's last interaction. "each": before every prediction.

    Raises:
        ConfigError: If `at` is unknown, or if the policy keeps everything.
    """
    if at not in ("end", "each"):
        raise ConfigError(f"at is '{at}': choose end or each")
    known = reindex_items(trained, data)
    columns = EventColumns.of(known, side_information=trained.side)
    _, trace = roll_out(trained, known, columns, with_scores=True)
    if not isinstance(trace, StoredTrace) or trace.final is None or trace.final_scores is None:
        raise ConfigError("the policy 'all' keeps everything: it has no sketches")
    if at == "each":
        start = trace.event - trace.step
        position = np.where(trace.kept >= 0, trace.kept - start[:, None], -1)
        return _columns(known, trace.user.numpy(), trace.step.numpy(), position, trace.scores)
    stream = make_stream([known], columns)
    user = stream.user[0]
    order = np.argsort(user.numpy())
    length = stream.length[0].numpy()
    position = trace.final.position.numpy()[order]
    return _columns(
        known, user.numpy()[order], length[order], position, trace.final_scores.numpy()[order]
    )


def _columns(data: Interactions, user: Any, t: Any, position: Any, score: Any) -> dict[str, Any]:
    """Return one row per entry of a sketch."""
    row, slot = np.nonzero(np.asarray(position) >= 0)
    place = np.asarray(position)[row, slot]
    event = data.starts[user[row]] + place
    ids = np.array([data.user_id(index) for index in range(data.users)], dtype=object)
    names = np.array(list(data.item_ids), dtype=object)
    found: dict[str, Any] = {
        "user": ids[user[row]],
        "t": t[row],
        "position": place,
        "item": names[data.item[event]],
    }
    blank = np.full(len(event), np.nan, np.float32)  # implicit data has no ratings
    found["rating"] = blank if data.rating is None else data.rating[event]
    found["score"] = np.asarray(score)[row, slot]
    return found


def prediction_columns(trained: TrainedModel, data: Interactions) -> dict[str, Any]:
    """Return all predictions as columns user, t, item, and rating and prediction, or rank.

    Args:
        trained: The model.
        data: Any data; items are matched by original id.
    """
    known = reindex_items(trained, data)
    stack, trace = roll_out(trained, known, EventColumns.of(known, side_information=trained.side))
    made = predict(stack, trace, 0)
    event, user = trace.event.numpy(), trace.user.numpy()
    ids = np.array([known.user_id(index) for index in range(known.users)], dtype=object)
    names = np.array(list(known.item_ids), dtype=object)
    found: dict[str, Any] = {
        "user": ids[user],
        "t": trace.step.numpy(),
        "item": names[known.item[event]],
    }
    if trained.explicit and known.rating is not None:
        clamped = made.output.clamp(trained.spec.low, trained.spec.high)
        return {**found, "rating": known.rating[event], "prediction": clamped.numpy()}
    return {**found, "rank": made.output.numpy()}
