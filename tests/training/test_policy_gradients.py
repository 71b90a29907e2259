"""Policy gradients against a slow reference: one user, prediction and decision at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from dips.credit.replay import ReplayCredit, replay, whole_histories
from dips.data.interactions import from_arrays
from dips.errors import ConfigError
from dips.numerics.fixed_point import PARAMETER_BITS, quantize
from dips.numerics.relaxation import keep_k
from dips.policy.network import Network
from dips.recommender.base import Evidence
from dips.recommender.signals import recommender_signals
from dips.rollout.rollout import Rollout
from dips.sketch.records import Candidates, Sketch
from dips.sketch.selection import gumbel_noise
from dips.sketch.signals import Signals
from dips.sketch.update import join
from dips.stream.users import make_stream
from dips.training.config import TrainConfig
from dips.training.estimators import StraightThrough
from dips.training.policy_batches import RefreshTable, interval_policy_batch, pack_policy_batches
from dips.training.policy_gradients import estimate_gradients, policy_gradients
from dips.training.rollouts import recorded_signals

SIZE = 2
PERIODS = {"online": (1,), "batch_size": (3,), "varying": (2, 3)}
CREDITS = [("identity", 1), ("identity", 2), ("identity", 100), ("discount", 2), ("discount", 100)]


# The reference: lists, and automatic differentiation.


class Choice(NamedTuple):
    """A decision of the rollout."""

    seen: int
    position: Tensor  # [candidates]
    scores: Tensor  # [candidates] connected to the policy
    noise: Tensor  # [candidates]
    dropped: int


class History(NamedTuple):
    """A user's decisions, and the loss and entry gradients of every step."""

    choices: list[Choice]
    losses: list[float]
    gradients: list[Tensor]


def _history(at: Any, policy: Network, rows: list[int]) -> History:
    columns, first = at.trace.columns, int(at.trace.event[rows[0]])
    span = slice(first, first + len(rows))
    item, rating, time = columns.item[span], columns.rating[span], columns.time[span]
    kept = [[e - first for e in at.trace.kept[row].tolist() if e >= 0] for row in rows]
    model, history = at.stack.one(0), History([], [], [])

    def entries(places: list[int], repeats: Tensor) -> Sketch:
        index = torch.tensor(places)
        fields = (index, item[index], rating[index], time[index], repeats, 0 * index)
        return Sketch(*(f[None] for f in fields))

    counts = torch.tensor(
        [int((item[: p + 1] == item[p]).sum()) for p in range(min(SIZE, len(rows)))]
    )
    repeats = {place: int(count) for place, count in enumerate(counts)}
    for t in range(len(rows)):
        if t in at.refreshes:
            before = entries(kept[t - 1], torch.tensor([repeats[p] for p in kept[t - 1]]))
            new = list(range(t - at.refreshes[t], t))
            arrivals = entries(new, torch.ones(len(new), dtype=torch.int64))
            candidates = join(before, arrivals, torch.tensor([t]), at.trace.inputs.key[rows[:1]])  # type: ignore[union-attr]
            repeats |= dict(
                zip(candidates.position[0].tolist(), candidates.repeats[0].tolist(), strict=True)
            )
            answers = {}
            if at.policies.required_signals:
                signals = recommender_signals(at.stack.quantized(), before, candidates)
                answers["residual"] = signals.residual
                answers["embedding"] = quantize(model.embedding(candidates.item), PARAMETER_BITS)
            scores = policy.score(candidates, Signals.of(answers))[0]
            gone = set(candidates.position[0].tolist()) - set(kept[t])
            noise = gumbel_noise(candidates)[0]
            dropped = candidates.position[0].tolist().index(min(gone))
            history.choices.append(Choice(t, candidates.position[0], scores, noise, dropped))
        weight = torch.zeros(1, len(rows)).double()
        weight[0, kept[t]] = 1.0
        weight.requires_grad_()
        age = (t - 1 - torch.arange(len(rows))).clamp_min(0)[None].double()
        slots = torch.tensor([len(kept[t])])
        repeat_counts = torch.tensor(
            [[float(repeats.get(p, 1)) for p in range(len(rows))]]
        ).double()
        state = model.read(Evidence(item[None], rating[None], weight, slots, age, repeat_counts))
        loss = model.losses(state, item[None, t : t + 1], rating[None, t : t + 1])[0, 0]
        history.losses.append(float(loss.detach()))
        history.gradients.append(torch.autograd.grad(loss, weight)[0][0])
    return history


class Oracle:
    """Histories of all users, and their policy gradients."""

    def __init__(self, at: Any) -> None:
        self.at = at
        module = at.policies.one(0)
        assert isinstance(module, Network)
        self.policy = module.requires_grad_()
        owner = at.trace.inputs.owner.tolist()  # type: ignore[union-attr]
        users = [
            [r for r, other in enumerate(owner) if other == who] for who in dict.fromkeys(owner)
        ]
        self.histories = [_history(at, module, rows) for rows in users]

    def gradient(self, config: TrainConfig) -> dict[str, Tensor]:
        """Return the gradient of the sum over decisions and the predictions that credit them."""
        discount = (
            config.policy_training.discount if config.policy_training.credit == "discount" else 1.0
        )
        later = [
            loss
            for history in self.histories
            if history.choices
            for loss in history.losses[history.choices[0].seen :]
        ]
        mean = sum(later) / len(later)
        total = torch.zeros((), dtype=torch.float64)
        for history in self.histories:
            for j, choice in enumerate(history.choices):
                for t in range(choice.seen, len(history.losses)):
                    lag = sum(other.seen <= t for other in history.choices) - 1 - j
                    if lag < config.policy_training.queue:
                        total = total + discount**lag * self._term(history, choice, t, mean, config)
        names, values = zip(*self.policy.named_parameters(), strict=True)
        found = torch.autograd.grad(total, values, retain_graph=True)
        return dict(zip(names, found, strict=True))

    def _term(
        self, history: History, choice: Choice, t: int, mean: float, config: TrainConfig
    ) -> Tensor:
        scores = choice.scores
        if config.policy_training.estimator == "reinforce":
            return (-scores).log_softmax(0)[choice.dropped] * (history.losses[t] - mean)
        if config.policy_training.estimator == "gumbel":
            soft = 1 - (choice.noise - scores).softmax(0)
        elif len(scores) == SIZE + 1:
            soft = 1 - (-scores).softmax(0)
        else:
            soft = keep_k(scores[None], torch.ones_like(scores)[None], SIZE)[0]
        return (history.gradients[t][choice.position] * soft).sum()


def _whole_histories(at: Any) -> Candidates:
    """Return all interactions of all users."""
    lengths, first = at.stream.length[0], at.stream.start[0]
    return whole_histories(at.trace.columns, first, lengths, lengths)


def _same(mine: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    scale = max(float(value.abs().max()) for value in expected.values())
    assert scale > 1e-3
    for name, value in expected.items():
        torch.testing.assert_close(mine[name], value, atol=tolerance * scale, rtol=tolerance)


@pytest.mark.parametrize("periods", PERIODS.values(), ids=PERIODS)
@pytest.mark.parametrize("loss", ["mse", "softmax", "bce"])
@pytest.mark.parametrize("policy", ["dips", "learned"])
def test_straight_through_equals_the_reference(
    scene: Any, policy: str, loss: str, periods: tuple[int, ...]
) -> None:
    """The set network reads residuals that the rollout recorded in single precision."""
    at = scene(policy, loss, periods)
    oracle, sizes = Oracle(at), set()
    for credit, queue in CREDITS:
        changes = {"credit": credit, "queue": queue}
        mine = at.gradient(at.whole(), **changes)
        _same(mine, oracle.gradient(at.config.but(**changes)), 1e-9 if policy == "dips" else 1e-5)
        sizes.add(sum(float(value.abs().sum()) for value in mine.values()))
    assert len(sizes) == len(CREDITS)


@pytest.mark.parametrize("periods", PERIODS.values(), ids=PERIODS)
@pytest.mark.parametrize("recommender", ["gru", "sasrec"])
@pytest.mark.parametrize("policy", ["dips", "learned"])
def test_recommenders_that_read_in_order_equal_the_reference(
    scene: Any, policy: str, recommender: str, periods: tuple[int, ...]
) -> None:
    """Entries that were dropped long ago are read in their places in time, with weight 0."""
    at = scene(policy, "softmax", periods, recommender=recommender)
    oracle = Oracle(at)
    for credit, queue in CREDITS:
        changes = {"credit": credit, "queue": queue}
        mine = at.gradient(at.whole(), **changes)
        _same(mine, oracle.gradient(at.config.but(**changes)), 1e-9 if policy == "dips" else 1e-5)


@pytest.mark.parametrize("estimator", ["gumbel", "reinforce"])
@pytest.mark.parametrize("policy", ["dips", "learned"])
def test_other_estimators_equal_the_reference(scene: Any, policy: str, estimator: str) -> None:
    at = scene(policy, selection="sampled", estimator=estimator)
    oracle = Oracle(at)
    for credit, queue in CREDITS:
        changes = {"credit": credit, "queue": queue}
        expected = oracle.gradient(at.config.but(**changes))
        _same(at.gradient(at.whole(), **changes), expected, 1e-9 if policy == "dips" else 1e-5)


@pytest.mark.parametrize("periods", PERIODS.values(), ids=PERIODS)
@pytest.mark.parametrize("loss", ["mse", "softmax"])
def test_an_unlimited_queue_is_a_replay_with_identity_jacobians(
    scene: Any, loss: str, periods: tuple[int, ...]
) -> None:
    """Inputs of the network are constants, and later refreshes pass weights on (Eq. 10)."""
    at = scene("dips", loss, periods)
    past = _whole_histories(at)
    policy = at.policies.one(0).requires_grad_()
    found = replay(
        lambda candidates, weight: policy.score_weighted(candidates, Signals(), weight),
        at.stack.one(0), past, SIZE, at.config.sketch.schedule, identity=True,
    )  # fmt: skip
    names, values = zip(*policy.named_parameters(), strict=True)
    expected = torch.autograd.grad(found.losses.sum(), values)
    _same(at.gradient(at.whole(), queue=1000), dict(zip(names, expected, strict=True)), 1e-9)


@pytest.mark.parametrize("periods", PERIODS.values(), ids=PERIODS)
@pytest.mark.parametrize("loss", ["mse", "softmax"])
def test_replay_credit_is_the_derivative_of_a_replay(
    scene: Any, loss: str, periods: tuple[int, ...]
) -> None:
    """Eq. 9 by credit of decisions equals autograd through whole histories, and is not Eq. 10."""
    at = scene("dips", loss, periods)
    policy = at.policies.one(0).requires_grad_()
    found = replay(
        lambda candidates, weight: policy.score_weighted(candidates, Signals(), weight),
        at.stack.one(0), _whole_histories(at), SIZE, at.config.sketch.schedule,
    )  # fmt: skip
    names, values = zip(*policy.named_parameters(), strict=True)
    expected = dict(zip(names, torch.autograd.grad(found.losses.sum(), values), strict=True))
    batch, credit = at.whole(), ReplayCredit(at.config.sketch.schedule)
    given = (at.stack, at.policies, at.trace, at.refresh_table, batch, SIZE)
    mine = estimate_gradients(*given, credit, StraightThrough())
    count = int((batch.predicted >= 0).sum())
    _same({name: value[0] * count for name, value in mine.items()}, expected, 1e-9)
    queue = at.gradient(batch, queue=1000)
    assert not torch.allclose(queue["output_weight"], expected["output_weight"], rtol=1e-3)


def test_replay_credit_names_what_it_needs(scene: Any) -> None:
    at = scene("learned")
    credit, size = ReplayCredit(at.config.sketch.schedule), at.config.sketch.size
    given = (at.stack, at.policies, at.trace, at.refresh_table)
    with pytest.raises(ConfigError, match="takes weights and reads no signals"):
        estimate_gradients(*given, at.whole(), size, credit, StraightThrough())
    at = scene("dips")
    given = (at.stack, at.policies, at.trace, at.refresh_table)
    part = interval_policy_batch(
        at.refresh_table, 3, at.rollout.base, at.stream.length, range(4, 6)
    )
    assert part is not None
    with pytest.raises(ConfigError, match="needs whole histories in a batch"):
        estimate_gradients(*given, part, size, credit, StraightThrough())


@pytest.mark.parametrize("periods", PERIODS.values(), ids=PERIODS)
@pytest.mark.parametrize("policy", ["dips", "learned"])
def test_update_intervals_add_up_to_whole_histories(
    scene: Any, policy: str, periods: tuple[int, ...]
) -> None:
    """With constant parameters, intervals of a queue give the gradient of whole histories."""
    at = scene(policy, "mse", periods)
    for (credit, queue), lengths in zip(
        CREDITS, [(1, 5), (2, 1000), (1,), (1, 2), (5,)], strict=True
    ):
        changes = {"credit": credit, "queue": queue}
        whole = at.gradient(at.whole(), **changes)
        for interval in lengths:
            total = {name: torch.zeros_like(value) for name, value in whole.items()}
            for first in range(0, at.stream.longest, interval):
                span = range(first, min(first + interval, at.stream.longest))
                policy_batch = interval_policy_batch(
                    at.refresh_table, queue, at.rollout.base, at.stream.length, span
                )
                if policy_batch is not None:
                    for name, value in at.gradient(policy_batch, **changes).items():
                        total[name] += value
            _same(total, whole, 1e-9)


def test_survival_with_a_queue_of_1_equals_identity(scene: Any) -> None:
    """With a longer queue it differs."""
    at = scene("learned")
    one = at.gradient(at.whole(), credit="identity", queue=1)
    _same(at.gradient(at.whole(), credit="survival", queue=1), one, 1e-9)
    longer = at.gradient(at.whole(), credit="survival", queue=5)
    other = at.gradient(at.whole(), credit="identity", queue=5)
    assert not torch.allclose(longer["slope"], other["slope"])


def test_reinforce_estimates_the_gradient_of_the_expected_loss(scene: Any) -> None:
    """Many users have the same history and one sampled decision each."""
    users = 3000
    items, ratings = np.tile([1, 2, 3, 4], users), np.tile([1.0, 5.0, 3.0, 4.0], users)
    data = from_arrays(np.repeat(np.arange(users), 4), items, ratings.astype(np.float32))
    at = scene("dips", data=data, selection="sampled", estimator="reinforce")
    mine = at.gradient(at.whole())
    model, policy = at.stack.one(0), at.policies.one(0).requires_grad_()
    three = torch.tensor([[1, 2, 3]])
    rating = torch.tensor([[1.0, 5.0, 3.0]]).double()
    place, nothing = torch.arange(3)[None], torch.zeros(1, 3, dtype=torch.int64)
    seen = torch.tensor([3])
    scores = policy.score(
        Candidates(place, three, rating, nothing, nothing, nothing, seen, seen), Signals()
    )
    left = torch.tensor([[1, 2], [0, 2], [0, 1]])
    evidence = Evidence.new(
        three[0, left], rating[0, left], torch.ones(3, 2).double(), torch.full((3,), 2)
    )
    target = torch.full((3, 1), 4), torch.full((3, 1), 4.0).double()
    expected = ((-scores[0]).softmax(0) * model.losses(model.read(evidence), *target)[:, 0]).sum()
    names, values = zip(*policy.named_parameters(), strict=True)
    slopes = dict(zip(names, torch.autograd.grad(expected * users, values), strict=True))
    flat = [torch.cat([found[name].flatten() for name in names]) for found in (mine, slopes)]
    assert float(cosine_similarity(*flat, dim=0)) > 0.97
    assert float(flat[0].norm() / flat[1].norm()) == pytest.approx(1, abs=0.15)


def test_stacked_runs_equal_single_runs(lab: Callable[..., Any]) -> None:
    """Networks, recommenders and users differ; the shorter run is padded."""
    world = lab()
    for policy, more in (("dips", {}), ("learned", {"credit": "survival"})):
        jobs = [
            world.job(policy=policy, seed=seed, policy_batch_size=30, **more) for seed in (0, 1)
        ]
        fit_state = world.start(jobs)
        fit_state.policies.state[next(iter(fit_state.policies.state))] += 0.1
        refresh_table = RefreshTable.of(
            jobs[0].config.sketch.schedule, SIZE, 12, torch.device("cpu")
        )

        def gradients(
            runs: list[int],
            jobs: Any = jobs,
            fit_state: Any = fit_state,
            refresh_table: Any = refresh_table,
        ) -> list[dict[str, Tensor]]:
            stream = make_stream([jobs[run].train for run in runs], world.columns)
            stack, policies = fit_state.stack.select(runs), fit_state.policies.select(runs)
            config = jobs[0].config
            rollout = Rollout(
                stream,
                size=SIZE,
                schedule=config.sketch.schedule,
                keys=stream.keys(runs),
                recorded_signals=recorded_signals(policies.template),
            )
            rollout.advance(policies, stack)
            policy_batches = pack_policy_batches(
                rollout.trace, refresh_table, runs, 1, config.policy_training.policy_batch_size
            )
            return [
                policy_gradients(
                    stack, policies, rollout.trace, refresh_table, policy_batch, config
                )
                for policy_batch in policy_batches
            ]

        together = gradients([0, 1])
        for run in (0, 1):
            for mine, single in zip(together, gradients([run]), strict=False):
                for name, value in single.items():
                    torch.testing.assert_close(mine[name][run], value[0], atol=1e-5, rtol=1e-4)


def test_dropout_is_for_training_only(scene: Any) -> None:
    """Decisions use all units. Gradients drop some, by user and time."""
    at = scene("dips", dropout=0.5)
    thin = at.gradient(at.whole())
    assert torch.equal(at.gradient(at.whole())["input_weight"], thin["input_weight"])
    for module in at.policies.template.modules():
        assert not (isinstance(module, nn.Module) and module.training)
    full = scene("dips")
    assert torch.equal(full.trace.kept, at.trace.kept)
    assert not torch.allclose(full.gradient(full.whole())["input_weight"], thin["input_weight"])


@pytest.mark.parametrize("periods", PERIODS.values(), ids=PERIODS)
@pytest.mark.parametrize("recommender", ["", "gru"])
def test_credit_with_seen_items_filtered_is_that_of_a_replay(
    scene: Any, recommender: str, periods: tuple[int, ...]
) -> None:
    """The replay filters whole histories, so a dropped entry stays filtered (Eq. 10)."""
    at = scene("dips", "softmax", periods, recommender=recommender)
    plain = at.gradient(at.whole(), queue=1000)
    at.stack.template.masks_seen = True
    policy = at.policies.one(0).requires_grad_()
    found = replay(
        lambda candidates, weight: policy.score_weighted(candidates, Signals(), weight),
        at.stack.one(0), _whole_histories(at), SIZE, at.config.sketch.schedule, identity=True,
    )  # fmt: skip
    names, values = zip(*policy.named_parameters(), strict=True)
    expected = torch.autograd.grad(found.losses.sum(), values)
    mine = at.gradient(at.whole(), queue=1000)
    _same(mine, dict(zip(names, expected, strict=True)), 1e-9)
    assert not torch.allclose(mine["output_weight"], plain["output_weight"], rtol=1e-2)
