"""Arrivals in one compiled loop against arrivals in rounds: the same states, or not taken."""

from __future__ import annotations

import pytest
import torch
from bundles import make_bundle

from dips.numerics import looping
from dips.recommender import compiled
from dips.serve.engine import Engine
from dips.serve.records import decode
from dips.serve.states import States
from dips.sketch.records import Sketch

USERS, EVENTS, CODES = 5, 120, 12


def _after(engine: Engine, width: int = 0) -> list[torch.Tensor]:
    """The states of a few users after many arrivals, of which a quarter are unknown items."""
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
    for part in torch.arange(EVENTS).split(50):
        columns = Sketch(*(column[part] for column in arrivals))
        engine.arrive_all(states, row[part], columns, lambda: torch.arange(USERS), number)
    return [*states.sketch, states.seen]


@pytest.mark.parametrize("size", [1, 3, 6])
def test_compiled_arrivals_leave_the_same(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Repeats, side information that is carried, items that the run does not know."""
    pytest.importorskip("numba")
    bundle = make_bundle("learned", size)
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "arrive", None)  # rounds are closed
        quick = _after(Engine(bundle))
    with monkeypatch.context() as patch:
        for module in (looping, compiled):
            patch.setattr(module, "installed", lambda _: False)
        slow = _after(Engine(bundle))
    for one, other in zip(quick, slow, strict=True):
        assert torch.equal(one, other)


def test_who_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these is one step away from what is."""
    taken = []
    monkeypatch.setattr(looping, "installed", lambda _: True)
    monkeypatch.setattr(looping, "keep", lambda *_: taken.append(1))
    monkeypatch.setattr(Engine, "arrive", lambda *_: None)
    _after(Engine(make_bundle("learned", 3)))
    assert taken
    taken.clear()
    _after(Engine(make_bundle("learned", 3)), width=4)  # a record of another run is wider
    _after(Engine(make_bundle("learned", 3, (2,))))
    _after(Engine(make_bundle("learned", 3, choice="sampled")))
    _after(Engine(make_bundle("learned", 3, loss="bce")))
    _after(Engine(make_bundle("learned", 3, form="mlp")))
    _after(Engine(make_bundle("dips", 3)))
    _after(Engine(make_bundle("last", 3)))
    watched = Engine(make_bundle("learned", 3))
    watched.shadow = object()  # type: ignore[assignment]
    _after(watched)
    monkeypatch.setattr(looping, "installed", lambda _: False)
    _after(Engine(make_bundle("learned", 3)))
    assert taken == []
