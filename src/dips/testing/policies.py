"""Checks of a policy: it must be a pure, deterministic function of the candidates."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from dips.data.interactions import Interactions
from dips.errors import ConfigError
from dips.numerics.fixed_point import SCORE_BITS, quantize
from dips.policy.base import Policy, signals_of
from dips.policy.network import Network
from dips.policy.stacked import StackedPolicies
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.rollout import rollout
from dips.rollout.trace import Trace
from dips.sketch.records import Candidates, Sketch
from dips.sketch.selection import Greedy
from dips.stream.schedule import Schedule
from dips.stream.users import EventColumns, make_stream
from dips.testing.fakes import FakeRecommender, fake_signals
from dips.testing.require import close, require, same
from dips.testing.state import require_tensors_in_state
from dips.testing.worlds import random_candidates, random_world

PERIOD = 2
"""Number of new interactions in the candidates of the checks."""


def check_policy(policy: Policy | Callable[[], Policy]) -> None:
    """Run every check on a policy.

    Args:
        policy: A policy, or a class or function without arguments that makes one.

    Raises:
        AssertionError: If a check fails; the message says what to change.

    Example:
        >>> from dips.policy.reservoir import Mix
        >>> check_policy(Mix(1))
    """
    made = policy if isinstance(policy, Policy) else policy()
    require(isinstance(made, Policy), f"{made!r} is not a dips Policy: subclass it")
    for check in POLICY_CHECKS:
        check(made)


def one_score_per_candidate(policy: Policy) -> None:
    """Check that scores are floating point, [users, candidates], and not NaN for a candidate."""
    for seed in range(3):
        candidates = _candidates(seed)
        scores = _score(policy, candidates)
        require(isinstance(scores, Tensor), f"{_name(policy)}.score must return a tensor")
        shape = tuple(candidates.position.shape)
        require(
            tuple(scores.shape) == shape,
            f"{_name(policy)}.score returned the shape {tuple(scores.shape)} for candidates of "
            f"{shape}: one score per user and candidate is needed",
        )
        require(
            scores.is_floating_point(),
            f"{_name(policy)}.score returned {scores.dtype}: scores must be floating-point",
        )
        require(
            not bool(scores[candidates.present].isnan().any()),
            f"{_name(policy)}.score is not a number for some candidate",
        )


def is_deterministic(policy: Policy) -> None:
    """Check that the same candidates get the same scores again, and in a copy of the policy."""
    candidates = _candidates(0)
    first = _score(policy, candidates)
    _score(policy, _candidates(1))
    advice = "derive random numbers from candidates.key, and keep no state"
    again = _score(policy, candidates)
    require(same(first, again), f"{_name(policy)} scores the same candidates differently: {advice}")
    copied = _score(copy.deepcopy(policy), candidates)
    require(same(first, copied), f"a copy of {_name(policy)} scores differently: {advice}")


def does_not_change_input(policy: Policy) -> None:
    """Check that `score` does not change the candidates in place."""
    candidates = _candidates(0)
    before = Candidates(*(field.clone() for field in candidates))
    _score(policy, candidates)
    for name, old, new in zip(before._fields, before, candidates, strict=True):
        require(same(old, new), f"{_name(policy)}.score changes candidates.{name} in place")


def ignores_empty_slots(policy: Policy) -> None:
    """Check that values in slots at position -1 do not matter."""
    for seed in range(3):
        candidates = _candidates(seed)
        empty = ~candidates.present
        changed = candidates._replace(
            item=torch.where(empty, 5, candidates.item),
            rating=torch.where(empty, 99.0, candidates.rating),
            time=torch.where(empty, 1 << 40, candidates.time),
            repeats=torch.where(empty, 50, candidates.repeats),
            side=torch.where(empty, -1, candidates.side),
        )
        before, after = _score(policy, candidates), _score(policy, changed)
        require(
            same(before[candidates.present], after[candidates.present]),
            f"{_name(policy)} reads empty slots: mask them with candidates.present",
        )


def ignores_slot_order(policy: Policy) -> None:
    """Check that permuted candidates get permuted scores."""
    for seed in range(3):
        candidates = _candidates(seed, distinct=True)
        order = torch.from_numpy(np.random.default_rng(seed).permutation(5))
        entries = Sketch(*(field[:, order] for field in candidates.entries))
        shuffled = candidates._replace(**entries._asdict())
        before, after = _score(policy, candidates)[:, order], _score(policy, shuffled)
        present = shuffled.present
        require(
            close(before[present].double(), after[present].double(), 2.0**-SCORE_BITS),
            f"{_name(policy)} scores by slot: use candidates.position or age for order in time",
        )


def ignores_other_users(policy: Policy) -> None:
    """Check that a user's scores do not depend on the batch, on the grid of decisions."""
    candidates = _candidates(0)
    together = quantize(_score(policy, candidates), SCORE_BITS)
    for user in range(len(together)):
        alone = Candidates(*(field[user : user + 1] for field in candidates))
        require(
            same(quantize(_score(policy, alone), SCORE_BITS), together[user : user + 1]),
            f"{_name(policy)} scores a user differently alone and in a batch: users must not "
            "depend on each other, and sums must be exact (dips.numerics.fixed_point)",
        )


def declares_randomness(policy: Policy) -> None:
    """Check that `is_random` says whether scores depend on the users' keys."""
    candidates = _candidates(0)
    other = candidates._replace(key=candidates.key + 1)
    moved = not same(_score(policy, candidates), _score(policy, other))
    name = _name(policy)
    require(
        policy.is_random or not moved, f"{name} depends on candidates.key: set is_random = True"
    )
    require(
        moved or not policy.is_random, f"{name} has is_random = True but ignores candidates.key"
    )


def declares_signals(policy: Policy) -> None:
    """Check that `required_signals` names every signal that is read."""
    candidates = _candidates(0)
    signals = fake_signals(candidates, arrivals=PERIOD).only(signals_of(policy))
    try:
        with _eval_mode(policy):
            policy.score(candidates, signals)
    except ConfigError as error:
        raise AssertionError(f"{_name(policy)}: {error}") from None


def has_all_tensors_in_state(policy: Policy) -> None:
    """Check that all tensors of a policy with parameters are in its state."""
    if isinstance(policy, nn.Module):
        require_tensors_in_state(policy)


def works_stacked(policy: Policy) -> None:
    """Check that stacked policies with parameters score as single ones."""
    if not isinstance(policy, nn.Module) or not list(policy.parameters()):
        return
    parts = [_candidates(seed) for seed in range(2)]
    both = Candidates(*(torch.cat(fields) for fields in zip(*parts, strict=True)))
    signals = fake_signals(both, arrivals=PERIOD)
    alone = quantize(torch.cat([_score(policy, part) for part in parts]), SCORE_BITS)
    advice = f"{_name(policy)} scores differently when stacked: it must run under torch.func.vmap"
    try:
        stacked = quantize(StackedPolicies.of([policy, policy]).score(both, signals), SCORE_BITS)
    except RuntimeError as error:
        raise AssertionError(f"{advice} ({error})") from None
    require(same(stacked[both.present], alone[both.present]), advice)


def ignores_candidates_of_weight_zero(policy: Policy) -> None:
    """Check, for a `Network`, that weights of 1 change nothing and weight 0 means absent.

    The oldest candidate gets weight 0, since the newest defines the current time.
    """
    if not isinstance(policy, Network):
        return
    candidates = _candidates(0)
    signals, present = fake_signals(candidates, arrivals=PERIOD), candidates.present
    oldest = candidates.age == torch.where(present, candidates.age, -1).amax(1, keepdim=True)
    absent = candidates._replace(position=torch.where(oldest, -1, candidates.position))
    with _eval_mode(policy):
        full, dropped = (
            policy.score_weighted(candidates, signals, (present & kept).double())
            for kept in (present, ~oldest)
        )
        whole, without = (policy.score(entries, signals) for entries in (candidates, absent))
    tolerance, others = 2.0**-SCORE_BITS, present & ~oldest
    name = _name(policy)
    require(
        close(full[present].double(), whole[present].double(), tolerance),
        f"{name}.score_weighted differs from its score though every weight is 1",
    )
    require(
        close(dropped[others].double(), without[others].double(), tolerance),
        f"{name}.score_weighted lets a candidate of weight 0 change the others' scores",
    )
    require(
        not bool(dropped[present].isnan().any()),
        f"{name}.score_weighted is not a number for a candidate of weight 0",
    )


def rolls_out_users_independently(policy: Policy) -> None:
    """Check that users rolled out one by one get the sketches that they get in a batch."""
    world = random_world()
    together = _roll_out(policy, world)
    for user in range(world.users):
        alone = _roll_out(policy, world.select([user]))
        rows = torch.nonzero(together.user == user)[:, 0]
        one = alone.sketches(torch.arange(len(alone.event)))
        other = together.sketches(rows)[:, : one.shape[1]]
        require(
            same(one, other),
            f"{_name(policy)} keeps other interactions of a user in a batch than alone",
        )


POLICY_CHECKS: tuple[Callable[[Policy], None], ...] = (
    one_score_per_candidate,
    is_deterministic,
    does_not_change_input,
    ignores_empty_slots,
    ignores_slot_order,
    ignores_other_users,
    declares_randomness,
    declares_signals,
    has_all_tensors_in_state,
    works_stacked,
    ignores_candidates_of_weight_zero,
    rolls_out_users_independently,
)
"""Every check of a policy; each raises AssertionError."""


def _candidates(seed: int, distinct: bool = False) -> Candidates:
    return random_candidates(size=3, period=PERIOD, seed=seed, distinct=distinct)[1]


@contextmanager
def _eval_mode(policy: Policy) -> Iterator[None]:
    """Put a policy in evaluation mode, without gradients."""
    modules = policy.modules() if isinstance(policy, nn.Module) else ()
    training = [module for module in modules if module.training]
    for module in training:
        module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def _score(policy: Policy, candidates: Candidates) -> Tensor:
    with _eval_mode(policy):
        return policy.score(candidates, fake_signals(candidates, arrivals=PERIOD))


def _roll_out(policy: Policy, part: Interactions) -> Trace:
    stream = make_stream([part], EventColumns.of(part))
    with _eval_mode(policy):
        return rollout(
            stream,
            policy,
            size=3,
            schedule=Schedule((1, 2)),
            keys=stream.keys([0]),
            recommenders=StackedRecommenders.of([FakeRecommender()]),
            selector=Greedy(),
        )


def _name(policy: Policy) -> str:
    return type(policy).__name__
