"""Arrivals in one compiled loop against arrivals in rounds: the same states, or not taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from dips.kernels import numba_launch
from dips.policy.registry import build_policy
from dips.recommender import kernel_inputs as compiled
from dips.serve.engine import Engine
from dips.serve.records import decode
from dips.serve.user_states import States
from dips.sketch.records import Sketch
from tests.serve.models import make_model

USERS, EVENTS, CODES = 5, 120, 12


def _after(engine: Engine, before: Engine | None = None, width: int = 0) -> list[torch.Tensor]:
    """The states of a few users after many arrivals, of which a quarter are unknown items.

    The first of them may come under another run, which leaves gaps.
    """
    generator = torch.Generator().manual_seed(3)
    names = [f"user {n}".encode() for n in range(USERS)]
    states = States.of(decode(names, [None] * USERS), max(engine.size, width), engine.longest)
    row = torch.randint(USERS, (EVENTS,), generator=generator)
    item = torch.randint(CODES, (EVENTS,), generator=generator)
    rating = torch.randint(1, 6, (EVENTS,), generator=generator).float()
    time = torch.randint(10**6, (EVENTS,), generator=generator)
    ones = torch.ones_like(item)
    arrivals = Sketch(-ones, item, rating, time, ones, item << 40)
    number = torch.where(torch.arange(CODES) % 4 == 1, -1, torch.arange(CODES))
    for turn, part in enumerate(torch.arange(EVENTS).split(50)):
        columns = Sketch(*(column[part] for column in arrivals))
        at_work = before if before is not None and turn == 0 else engine
        at_work.arrive_all(states, row[part], columns, lambda: torch.arange(USERS), number)
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
                "separate_input": True,
            },
        ),
        *(("last", size, {}) for size in (1, 3)),
        *(("reservoir", size, {}) for size in (1, 6)),
        *(("mix:1", 3, {}), ("mix:4", 6, {})),
    ],
    ids=str,
)
def test_compiled_arrivals_leave_the_same(
    monkeypatch: pytest.MonkeyPatch, policy: str, size: int, more: dict[str, Any]
) -> None:
    """Repeats, side information that is carried, items that the run does not know."""
    pytest.importorskip("numba")
    trained, before = make_model(policy, size, **more), make_model("reservoir", size, **more)
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "arrive", None)  # rounds are closed
        quick = _after(Engine(trained), Engine(before))
    with monkeypatch.context() as patch:
        for module in (numba_launch, compiled):
            patch.setattr(module, "installed", lambda _: False)
        slow = _after(Engine(trained), Engine(before))
    for one, other in zip(quick, slow, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("compiled_too", [True, False])
def test_what_is_unknown_does_not_hang_on_where_scores_lie(
    monkeypatch: pytest.MonkeyPatch, compiled_too: bool
) -> None:
    """All scores higher by the same: nothing is likelier than it was, known or not."""
    if not compiled_too:
        for module in (numba_launch, compiled):
            monkeypatch.setattr(module, "installed", lambda _: False)
    trained = make_model("learned", 6, loss="softmax", predicted_score=True)
    trained = replace(trained, policy=build_policy(trained.policy_spec))
    before = _after(Engine(trained))
    trained.recommender.bias += 4.0
    for one, other in zip(_after(Engine(trained)), before, strict=True):
        assert torch.equal(one, other)


def test_items_without_tables_are_met_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    trained, found = make_model("learned", 3), []
    for tabled in (numba_launch.TABLED, 5, 0):
        monkeypatch.setattr(numba_launch, "TABLED", tabled)
        found.append(_after(Engine(trained)))
    for fields in zip(*found, strict=True):
        assert all(torch.equal(fields[0], field) for field in fields)


def test_who_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these is one step away from what is."""
    taken = []
    monkeypatch.setattr(numba_launch, "installed", lambda _: True)
    monkeypatch.setattr(numba_launch, "keeper", lambda *_: lambda *_: taken.append(1))
    monkeypatch.setattr(numba_launch, "keep_newest", lambda *_: taken.append(1))
    monkeypatch.setattr(Engine, "arrive", lambda *_: None)
    _after(Engine(make_model("learned", 3)))
    assert taken
    taken.clear()
    _after(Engine(make_model("learned", 3)), width=4)  # a record of another run is wider
    _after(Engine(make_model("learned", 3, (2,))))
    _after(Engine(make_model("learned", 3, choice="sampled")))
    _after(Engine(make_model("learned", 3, loss="bce")))
    _after(Engine(make_model("learned", 3, form="mlp")))
    _after(Engine(make_model("dips", 3)))
    _after(Engine(make_model("last-distinct", 3)))
    _after(Engine(make_model("last", 3, (2,))))
    _after(Engine(make_model("reservoir", 3, choice="sampled")))
    watched = Engine(make_model("learned", 3))
    watched.shadow = object()  # type: ignore[assignment]
    _after(watched)
    monkeypatch.setattr(numba_launch, "installed", lambda _: False)
    _after(Engine(make_model("learned", 3)))
    assert taken == []
