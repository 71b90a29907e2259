"""Oracle of the keeper: fold events into sketches in plain Python, one event at a time.

No tensors, no batches, no bytes. `fold` takes events as dictionaries; {"forget": user} and
{"swap": policy} may occur between them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

MASK = 2**64 - 1


@dataclass
class History:
    """State of one user; entries are (position, item, rating, time, repeats)."""

    seen: int = 0
    next_seq: int = 0
    kept: list = field(default_factory=list)
    waiting: list = field(default_factory=list)


def fold(
    events: Iterable[dict],
    policy: str,
    size: int,
    periods: Sequence[int] = (1,),
    window: int = 10**6,
) -> dict[str, History]:
    users: dict[str, History] = {}
    tombstones: dict[str, int] = {}
    ids: dict[tuple[str, str], int] = {}
    count = 0
    for event in events:
        if "forget" in event:
            if event["forget"] in users:
                tombstones[event["forget"]] = users.pop(event["forget"]).next_seq
            continue
        if "swap" in event:
            policy = event["swap"]
            continue
        name, number = event["user"], event["seq"] + 1 if "seq" in event else None
        if name not in users and name in tombstones and (number or 0) <= tombstones[name]:
            continue
        user = users.get(name, History())
        if number is not None:
            if number <= user.next_seq:
                continue
            user.next_seq = number
        elif "id" in event:
            if ids.get((name, event["id"]), -window - 1) >= count - window:
                continue
            ids[name, event["id"]], count = count, count + 1
        users[name] = user
        user.waiting.append(
            [user.seen, event["item"], event.get("rating", 1.0), event.get("time", 0), 1]
        )
        user.seen += 1
        if user.seen <= size or refresh_is_due(user.seen - size, periods):
            refresh(user, policy, size, name)
    return users


def refresh_is_due(steps: int, periods: Sequence[int]) -> bool:
    ends = [sum(periods[: n + 1]) for n in range(len(periods))]
    return (steps - 1) % ends[-1] + 1 in ends


def refresh(user: History, policy: str, size: int, name: str) -> None:
    for place, entry in enumerate(user.waiting):
        before = max((e[4] for e in user.kept if e[1] == entry[1]), default=0)
        entry[4] = before + sum(e[1] == entry[1] for e in user.waiting[: place + 1])
    entries, user.waiting = user.kept + user.waiting, []
    newest = {entry[1]: entry[0] for entry in entries}

    def score(entry: list) -> tuple:
        if policy == "last":
            return (entry[0],)
        if policy == "frequent":
            return newest[entry[1]] == entry[0], entry[4], entry[0]
        assert policy == "reservoir"
        return priority(name, entry[0]), entry[0]

    user.kept = sorted(sorted(entries, key=score)[-size:])


def priority(user: str, position: int) -> int:
    key = int.from_bytes(hashlib.blake2b(user.encode(), digest_size=8).digest(), "little")
    for part in (0, 0, position):  # seed, epoch, position
        key = (key ^ part * 0xBF58476D1CE4E5B9) + 0x9E3779B97F4A7C15 & MASK
        key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9 & MASK
        key = (key ^ key >> 27) * 0x94D049BB133111EB & MASK
        key ^= key >> 31
    return round((key >> 11) * 2.0**-53 * 2**20)


def state_of(keeper: object, users: Iterable[str]) -> dict[str, History]:
    """Return what a keeper holds, in the form of the fold."""
    found = {}
    for sketch in keeper.sketches(sorted(users)):  # type: ignore[attr-defined]
        parts = [
            [[e.position, e.item, e.rating, e.time, e.repeats] for e in entries]
            for entries in (sketch.entries, sketch.waiting)
        ]
        next_seq = 0 if sketch.last_seq is None else sketch.last_seq + 1
        if sketch.seen:
            found[sketch.user] = History(sketch.seen, next_seq, *parts)
    return found
