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


@dataclass
class Fold:
    """State of all users, and what is needed to go on."""

    policy: str
    size: int
    periods: Sequence[int] = (1,)
    window: int = 10**6
    users: dict[str, History] = field(default_factory=dict)
    tombstones: dict[str, int] = field(default_factory=dict)
    ids: dict[tuple[str, str], int] = field(default_factory=dict)
    count: int = 0

    def apply(self, event: dict) -> None:
        if "forget" in event:
            if event["forget"] in self.users:
                erased = self.users.pop(event["forget"])
                self.tombstones[event["forget"]] = erased.next_seq
            return
        if "swap" in event:
            self.policy = event["swap"]
            return
        name, number = event["user"], event["seq"] + 1 if "seq" in event else None
        if name not in self.users and (number or 0) <= self.tombstones.get(name, -1):
            return
        user = self.users.get(name, History())
        if number is not None:
            if number <= user.next_seq:
                return
            user.next_seq = number
        elif "id" in event:
            if self.ids.get((name, event["id"]), -self.window - 1) >= self.count - self.window:
                return
            self.ids[name, event["id"]], self.count = self.count, self.count + 1
        self.users[name] = user
        user.waiting.append(
            [user.seen, event["item"], event.get("rating", 1.0), event.get("time", 0), 1]
        )
        user.seen += 1
        if user.seen <= self.size or refresh_is_due(user.seen - self.size, self.periods):
            refresh(user, self.policy, self.size, name)


def fold(
    events: Iterable[dict],
    policy: str,
    size: int,
    periods: Sequence[int] = (1,),
    window: int = 10**6,
) -> dict[str, History]:
    state = Fold(policy, size, periods, window)
    for event in events:
        state.apply(event)
    return state.users


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
    """Return what a keeper or a reader holds, in the form of the fold."""
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
