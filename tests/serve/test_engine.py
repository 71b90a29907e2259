"""The compiled path of arrivals against the reference path: the same states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from dips.kernels import dispatch
from dips.policy.registry import build_policy
from dips.serve.engine import Engine
from dips.serve.records import decode
from dips.serve.user_states import UserStates
from dips.sketch.records import Sketch
from tests.serve.models import make_model

USERS, EVENTS, CODES = 5, 120, 12


def _after(engine: Engine, before: Engine | None = None, width: int = 0) -> list[torch.Tensor]:
    """Return the states of a few users after many arrivals; a quarter are unknown items.

    The first arrivals may be applied by another engine, which leaves gaps in positions.
    """
    generator = torch.Generator().manual_seed(3)
    names = [f"user {n}".encode() for n in range(USERS)]
    states = UserStates.from_records(
        decode(names, [None] * USERS), max(engine.size, width), engine.longest
    )
    row = torch.randint(USERS, (EVENTS,), generator=generator)
    item = torch.randint(CODES, (EVENTS,), generator=generator)
    rating = torch.randint(1, 6, (EVENTS,), generator=generator).float()
    time = torch.randint(10**6, (EVENTS,), generator=generator)
    ones = torch.ones_like(item)
    arrivals = Sketch(-ones, item, rating, time, ones, item << 40)
    item_index = torch.where(torch.arange(CODES) % 4 == 1, -1, torch.arange(CODES))
    for turn, part in enumerate(torch.arange(EVENTS).split(50)):
        columns = Sketch(*(column[part] for column in arrivals))
        current = before if before is not None and turn == 0 else engine
        current.apply_arrivals(states, row[part], columns, lambda: torch.arange(USERS), item_index)
    return [*states.sketch, states.seen]


@pytest.mark.parametrize(
    ("policy", "size", "more"),
    [
        *(("learned", size, {}) for size in (1, 3, 6)),
        *(("learned", size, {"residual": False, "loss": "softmax"}) for size in (1, 4)),
        ("learned", 2, {"residual": False}),
        *(("learned", size, {"predicted_score": True, "loss": "softmax"}) for size in (1, 6)),
        (
            "learned",
            4,
            {
                "predicted_score": True,
                "loss": "softmax",
                "recency_decay": True,
                "tie_embeddings": False,
            },
        ),
        (
            "learned",
            6,
            {
                "predicted_score": True,
                "loss": "softmax",
                "inner_loss": "linearised",
                "negatives": 5,
                "recency_decay": True,
                "tie_embeddings": False,
            },
        ),
        *(("last", size, {}) for size in (1, 3)),
        *(("reservoir", size, {}) for size in (1, 6)),
        *(("mix:1", 3, {}), ("mix:4", 6, {})),
        *((policy, 4, {}) for policy in ("dips", "hardest", "hardest:5", "frequent")),
        ("last-distinct", 3, {}),
        ("last-top:2", 4, {"loss": "softmax"}),
        *(
            (f"last-top:{newest}", 8, {"loss": "softmax", "inner_loss": "linearised"})
            for newest in (1, 4)
        ),
    ],
    ids=str,
)
def test_the_compiled_path_equals_the_reference_path(
    monkeypatch: pytest.MonkeyPatch, policy: str, size: int, more: dict[str, Any]
) -> None:
    """With repeats, packed side information and unknown items."""
    pytest.importorskip("numba")
    trained, before = make_model(policy, size, **more), make_model("reservoir", size, **more)
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "apply_round", None)  # the reference path cannot be taken
        compiled = _after(Engine(trained), Engine(before))
    with monkeypatch.context() as patch:
        patch.setattr(dispatch, "installed", lambda _: False)
        reference = _after(Engine(trained), Engine(before))
    for one, other in zip(compiled, reference, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_constant_added_to_all_scores_changes_no_decision(
    monkeypatch: pytest.MonkeyPatch, is_compiled: bool
) -> None:
    """Also not for unknown items, which have no score of their own."""
    if not is_compiled:
        monkeypatch.setattr(dispatch, "installed", lambda _: False)
    trained = make_model("learned", 6, loss="softmax", predicted_score=True)
    trained = replace(trained, policy=build_policy(trained.policy_spec))
    before = _after(Engine(trained))
    trained.recommender.bias += 4.0
    for one, other in zip(_after(Engine(trained)), before, strict=True):
        assert torch.equal(one, other)


def test_items_without_tables_give_the_same_states(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    trained, found = make_model("learned", 3), []
    for rows in (dispatch.TABLE_ROWS, 5, 0):
        monkeypatch.setattr(dispatch, "TABLE_ROWS", rows)
        found.append(_after(Engine(trained)))
    for fields in zip(*found, strict=True):
        assert all(torch.equal(fields[0], field) for field in fields)


def test_the_compiled_path_is_taken_only_where_it_is_supported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of the unsupported engines differs from a supported one in one setting."""
    calls = []
    monkeypatch.setattr(dispatch, "installed", lambda _: True)
    monkeypatch.setattr(dispatch, "keeper", lambda *_: lambda *_: calls.append(1))
    monkeypatch.setattr(Engine, "apply_round", lambda *_: None)
    for policy in ("learned", "dips", "last", "last-distinct", "hardest"):
        _after(Engine(make_model(policy, 3)))
        assert calls, policy
        calls.clear()
    _after(Engine(make_model("learned", 3)), width=4)  # a record of another model is wider
    _after(Engine(make_model("learned", 3, (2,))))
    _after(Engine(make_model("learned", 3, choice="sampled")))
    _after(Engine(make_model("learned", 3, loss="bce")))
    _after(Engine(make_model("learned", 3, form="mlp")))
    _after(Engine(make_model("influence", 3)))
    _after(Engine(make_model("last", 3, (2,))))
    _after(Engine(make_model("reservoir", 3, choice="sampled")))
    shadowed = Engine(make_model("learned", 3))
    shadowed.shadow = object()  # type: ignore[assignment]
    _after(shadowed)
    monkeypatch.setattr(dispatch, "installed", lambda _: False)
    _after(Engine(make_model("learned", 3)))
    assert calls == []
