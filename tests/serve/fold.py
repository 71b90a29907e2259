"""The oracle: what a keeper must hold after some events, in plain Python, one event at a time.

No tensors, no batches, no bytes. `fold` takes events as dictionaries; {"forget": user} and
{"swap": policy} may stand between them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

MASK = 2**64 - 1


@dataclass
class Past:
    """One user: entries are (position, item, rating, time, repeats)."""

    seen: int = 0
    last: int = 0
    kept: list = field(default_factory=list)
    waiting: list = field(default_factory=list)


def fold(
    events: Iterable[dict],
    policy: str,
    size: int,
    periods: Sequence[int] = (1,),
    window: int = 10**6,
) -> dict[str, Past]:
    users: dict[str, Past] = {}
    gone: dict[str, int] = {}
    ids: dict[tuple[str, str], int] = {}
    count = 0
    for event in events:
        if "forget" in event:
            if event["forget"] in users:
                gone[event["forget"]] = users.pop(event["forget"]).last
            continue
        if "swap" in event:
            policy = event["swap"]
            continue
        name, number = event["user"], event["seq"] + 1 if "seq" in event else None
        if name not in users and name in gone and (number or 0) <= gone[name]:
            continue
        past = users.get(name, Past())
        if number is not None:
            if number <= past.last:
                continue
            past.last = number
        elif "id" in event:
            if ids.get((name, event["id"]), -window - 1) >= count - window:
                continue
            ids[name, event["id"]], count = count, count + 1
        users[name] = past
        past.waiting.append(
            [past.seen, event["item"], event.get("rating", 1.0), event.get("time", 0), 1]
        )
        past.seen += 1
        if past.seen <= size or refresh_is_due(past.seen - size, periods):
            refresh(past, policy, size, name)
    return users


def refresh_is_due(past: int, periods: Sequence[int]) -> bool:
    marks = [sum(periods[: n + 1]) for n in range(len(periods))]
    return (past - 1) % marks[-1] + 1 in marks


def refresh(past: Past, policy: str, size: int, user: str) -> None:
    for place, entry in enumerate(past.waiting):
        held = max((e[4] for e in past.kept if e[1] == entry[1]), default=0)
        entry[4] = held + sum(e[1] == entry[1] for e in past.waiting[: place + 1])
    entries, past.waiting = past.kept + past.waiting, []
    newest = {entry[1]: entry[0] for entry in entries}

    def worth(entry: list) -> tuple:
        if policy == "last":
            return (entry[0],)
        if policy == "frequent":
            return newest[entry[1]] == entry[0], entry[4], entry[0]
        assert policy == "reservoir"
        return lot(user, entry[0]), entry[0]

    past.kept = sorted(sorted(entries, key=worth)[-size:])


def lot(user: str, position: int) -> int:
    key = int.from_bytes(hashlib.blake2b(user.encode(), digest_size=8).digest(), "little")
    for part in (0, 0, position):  # seed, epoch, position
        key = (key ^ part * 0xBF58476D1CE4E5B9) + 0x9E3779B97F4A7C15 & MASK
        key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9 & MASK
        key = (key ^ key >> 27) * 0x94D049BB133111EB & MASK
        key ^= key >> 31
    return round((key >> 11) * 2.0**-53 * 2**20)


def told(keeper: object, users: Iterable[str]) -> dict[str, Past]:
    """What a keeper holds, in the form of the fold."""
    found = {}
    for sketch in keeper.sketches(sorted(users)):  # type: ignore[attr-defined]
        parts = [
            [[e.position, e.item, e.rating, e.time, e.repeats] for e in entries]
            for entries in (sketch.entries, sketch.waiting)
        ]
        last = 0 if sketch.last is None else sketch.last + 1
        if sketch.seen:
            found[sketch.user] = Past(sketch.seen, last, *parts)
    return found
