"""The policy's gradient against a slow one: a user, a prediction and a decision at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from dips.credit.replay import replay
from dips.data.interactions import from_arrays
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
from dips.training.policy_batches import RefreshTable, interval_policy_batch, pack_policy_batches
from dips.training.policy_gradients import policy_gradients
from dips.training.rollouts import recorded_signals

SIZE = 2
PERIODS = {"online": (1,), "batch_size": (3,), "varying": (2, 3)}
CREDITS = [("identity", 1), ("identity", 2), ("identity", 100), ("discount", 2), ("discount", 100)]


# The oracle: lists, and automatic differentiation.


class Choice(NamedTuple):
    """A decision as it was made."""

    seen: int
    position: Tensor  # [candidates]
    scores: Tensor  # [candidates] connected to the policy
    noise: Tensor  # [candidates]
    dropped: int


class Story(NamedTuple):
    """A user's decisions, and for every step its loss and the effect of every weight on it."""

    choices: list[Choice]
    losses: list[float]
    effects: list[Tensor]


def _story(at: Any, policy: Network, rows: list[int]) -> Story:
    columns, first = at.trace.columns, int(at.trace.event[rows[0]])
    span = slice(first, first + len(rows))
    item, rating, time = columns.item[span], columns.rating[span], columns.time[span]
    kept = [[e - first for e in at.trace.kept[row].tolist() if e >= 0] for row in rows]
    model, story = at.stack.one(0), Story([], [], [])

    def entries(places: list[int], repeats: Tensor) -> Sketch:
        index = torch.tensor(places)
        fields = (index, item[index], rating[index], time[index], repeats, 0 * index)
        return Sketch(*(f[None] for f in fields))

    met = torch.tensor([int((item[: p + 1] == item[p]).sum()) for p in range(min(SIZE, len(rows)))])
    repeats = {place: int(count) for place, count in enumerate(met)}
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
                asked = recommender_signals(at.stack.quantized(), before, candidates)
                answers["residual"] = asked.residual
                answers["embedding"] = quantize(model.embedding(candidates.item), PARAMETER_BITS)
            scores = policy.score(candidates, Signals.of(answers))[0]
            gone = set(candidates.position[0].tolist()) - set(kept[t])
            noise = gumbel_noise(candidates)[0]
            dropped = candidates.position[0].tolist().index(min(gone))
            story.choices.append(Choice(t, candidates.position[0], scores, noise, dropped))
        weight = torch.zeros(1, len(rows)).double()
        weight[0, kept[t]] = 1.0
        weight.requires_grad_()
        age = (t - 1 - torch.arange(len(rows))).clamp_min(0)[None].double()
        slots = torch.tensor([len(kept[t])])
        often = torch.tensor([[float(repeats.get(p, 1)) for p in range(len(rows))]]).double()
        state = model.read(Evidence(item[None], rating[None], weight, slots, age, often))
        loss = model.losses(state, item[None, t : t + 1], rating[None, t : t + 1])[0, 0]
        story.losses.append(float(loss.detach()))
        story.effects.append(torch.autograd.grad(loss, weight)[0][0])
    return story


class Oracle:
    """All users' stories, and any gradient of them."""

    def __init__(self, at: Any) -> None:
        self.at = at
        module = at.policies.one(0)
        assert isinstance(module, Network)
        self.policy = module.requires_grad_()
        owner = at.trace.inputs.owner.tolist()  # type: ignore[union-attr]
        users = [
            [r for r, other in enumerate(owner) if other == who] for who in dict.fromkeys(owner)
        ]
        self.stories = [_story(at, module, rows) for rows in users]

    def gradient(self, config: TrainConfig) -> dict[str, Tensor]:
        """Of the sum, over decisions and the predictions that they are credited with."""
        fade = config.policy_training.discount if config.policy_training.credit == "discount" else 1.0
        later = [
            loss
            for story in self.stories
            if story.choices
            for loss in story.losses[story.choices[0].seen :]
        ]
        mean = sum(later) / len(later)
        total = torch.zeros((), dtype=torch.float64)
        for story in self.stories:
            for j, choice in enumerate(story.choices):
                for t in range(choice.seen, len(story.losses)):
                    lag = sum(other.seen <= t for other in story.choices) - 1 - j
                    if lag < config.policy_training.queue:
                        total = total + fade**lag * self._term(story, choice, t, mean, config)
        names, values = zip(*self.policy.named_parameters(), strict=True)
        found = torch.autograd.grad(total, values, retain_graph=True)
        return dict(zip(names, found, strict=True))

    def _term(
        self, story: Story, choice: Choice, t: int, mean: float, config: TrainConfig
    ) -> Tensor:
        scores = choice.scores
        if config.policy_training.estimator == "reinforce":
            return (-scores).log_softmax(0)[choice.dropped] * (story.losses[t] - mean)
        if config.policy_training.estimator == "gumbel":
            soft = 1 - (choice.noise - scores).softmax(0)
        elif len(scores) == SIZE + 1:
            soft = 1 - (-scores).softmax(0)
        else:
            soft = keep_k(scores[None], torch.ones_like(scores)[None], SIZE)[0]
        return (story.effects[t][choice.position] * soft).sum()


def _same(mine: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    scale = max(float(value.abs().max()) for value in expected.values())
    assert scale > 1e-3
    for name, value in expected.items():
        torch.testing.assert_close(mine[name], value, atol=tolerance * scale, rtol=tolerance)


@pytest.mark.parametrize("periods", PERIODS.values(), ids=PERIODS)
@pytest.mark.parametrize("loss", ["mse", "softmax", "bce"])
@pytest.mark.parametrize("policy", ["dips", "learned"])
def test_straight_through_is_the_plain_loop(
    scene: Any, policy: str, loss: str, periods: tuple[int, ...]
) -> None:
    """The set network reads residuals that the walk has recorded_signals in single precision."""
    at = scene(policy, loss, periods)
    oracle, sizes = Oracle(at), set()
    for credit, queue in CREDITS:
        changes = {"credit": credit, "queue": queue}
        mine = at.gradient(at.whole(), **changes)
        _same(mine, oracle.gradient(at.config.but(**changes)), 1e-9 if policy == "dips" else 1e-5)
        sizes.add(sum(float(value.abs().sum()) for value in mine.values()))
    assert len(sizes) == len(CREDITS)


@pytest.mark.parametrize("estimator", ["gumbel", "reinforce"])
@pytest.mark.parametrize("policy", ["dips", "learned"])
def test_other_estimators_are_the_plain_loop(scene: Any, policy: str, estimator: str) -> None:
    at = scene(policy, choice="sampled", estimator=estimator)
    oracle = Oracle(at)
    for credit, queue in CREDITS:
        changes = {"credit": credit, "queue": queue}
        expected = oracle.gradient(at.config.but(**changes))
        _same(at.gradient(at.whole(), **changes), expected, 1e-9 if policy == "dips" else 1e-5)


@pytest.mark.parametrize("periods", PERIODS.values(), ids=PERIODS)
@pytest.mark.parametrize("loss", ["mse", "softmax"])
def test_an_endless_queue_is_the_replay_with_paths_cut(
    scene: Any, loss: str, periods: tuple[int, ...]
) -> None:
    """What the network sees and who may go: constants. What a choice does later: the identity."""
    at = scene("dips", loss, periods)
    lengths, start = at.stream.length[0], at.stream.start[0]
    place = torch.arange(int(lengths.max())).expand(len(lengths), -1)
    there = place < lengths[:, None]
    event = torch.where(there, start[:, None] + place, 0)
    columns = [column[event] for column in (at.trace.columns.item, at.trace.columns.rating)]
    nothing = torch.zeros_like(event)
    columns += [nothing, nothing, nothing, lengths, lengths]
    past = Candidates(torch.where(there, place, -1), *columns)
    policy = at.policies.one(0).requires_grad_()
    found = replay(
        lambda candidates, weight: policy.score_weighted(candidates, Signals(), weight),
        at.stack.one(0), past, SIZE, at.config.sketch.schedule, identity=True,
    )  # fmt: skip
    names, values = zip(*policy.named_parameters(), strict=True)
    expected = torch.autograd.grad(found.losses.sum(), values)
    _same(at.gradient(at.whole(), queue=1000), dict(zip(names, expected, strict=True)), 1e-9)


@pytest.mark.parametrize("periods", PERIODS.values(), ids=PERIODS)
@pytest.mark.parametrize("policy", ["dips", "learned"])
def test_stretches_add_up_to_whole_histories(
    scene: Any, policy: str, periods: tuple[int, ...]
) -> None:
    """As long as nothing moves, a queue that is served step by step earns the same."""
    at = scene(policy, "mse", periods)
    for (credit, queue), lengths in zip(
        CREDITS, [(1, 5), (2, 1000), (1,), (1, 2), (5,)], strict=True
    ):
        changes = {"credit": credit, "queue": queue}
        whole = at.gradient(at.whole(), **changes)
        for stretch in lengths:
            total = {name: torch.zeros_like(value) for name, value in whole.items()}
            for first in range(0, at.stream.longest, stretch):
                span = range(first, min(first + stretch, at.stream.longest))
                policy_batch = interval_policy_batch(
                    at.refresh_table, queue, at.walk.base, at.stream.length, span
                )
                if policy_batch is not None:
                    for name, value in at.gradient(policy_batch, **changes).items():
                        total[name] += value
            _same(total, whole, 1e-9)


def test_survival_with_a_queue_of_one_is_the_identity(scene: Any) -> None:
    """And with a longer one it is something else."""
    at = scene("learned")
    one = at.gradient(at.whole(), credit="identity", queue=1)
    _same(at.gradient(at.whole(), credit="survival", queue=1), one, 1e-9)
    longer = at.gradient(at.whole(), credit="survival", queue=5)
    other = at.gradient(at.whole(), credit="identity", queue=5)
    assert not torch.allclose(longer["slope"], other["slope"])


def test_reinforce_expects_the_slope_of_the_expected_loss(scene: Any) -> None:
    """Many users with one history and one decision each: what they drop is drawn."""
    users = 3000
    items, ratings = np.tile([1, 2, 3, 4], users), np.tile([1.0, 5.0, 3.0, 4.0], users)
    data = from_arrays(np.repeat(np.arange(users), 4), items, ratings.astype(np.float32))
    at = scene("dips", data=data, choice="sampled", estimator="reinforce")
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


def test_two_runs_are_each_alone(lab: Callable[..., Any]) -> None:
    """Different networks, recommenders and users; the shorter run is padded."""
    world = lab()
    for policy, more in (("dips", {}), ("learned", {"credit": "survival"})):
        jobs = [
            world.job(policy=policy, seed=seed, policy_batch_size=30, **more) for seed in (0, 1)
        ]
        fit_state = world.start(jobs)
        fit_state.policies.state[next(iter(fit_state.policies.state))] += 0.1
        refresh_table = RefreshTable.of(jobs[0].config.sketch.schedule, SIZE, 12, torch.device("cpu"))

        def gradients(
            runs: list[int], jobs: Any = jobs, fit_state: Any = fit_state, refresh_table: Any = refresh_table
        ) -> list[dict[str, Tensor]]:
            stream = make_stream([jobs[run].train for run in runs], world.columns)
            stack, policies = fit_state.stack.select(runs), fit_state.policies.select(runs)
            config = jobs[0].config
            walk = Rollout(
                stream,
                size=SIZE,
                schedule=config.sketch.schedule,
                keys=stream.keys(runs),
                recorded_signals=recorded_signals(policies.template),
            )
            walk.advance(policies, stack)
            policy_batches = pack_policy_batches(
                walk.trace, refresh_table, runs, 1, config.policy_training.policy_batch_size
            )
            return [
                policy_gradients(stack, policies, walk.trace, refresh_table, policy_batch, config)
                for policy_batch in policy_batches
            ]

        together = gradients([0, 1])
        for run in (0, 1):
            for mine, alone in zip(together, gradients([run]), strict=False):
                for name, value in alone.items():
                    torch.testing.assert_close(mine[name][run], value[0], atol=1e-5, rtol=1e-4)


def test_dropout_is_for_learning_only(scene: Any) -> None:
    """Decisions are made by all units; what is learned from leaves some out, by user and time."""
    at = scene("dips", dropout=0.5)
    thin = at.gradient(at.whole())
    assert torch.equal(at.gradient(at.whole())["input_weight"], thin["input_weight"])
    for module in at.policies.template.modules():
        assert not (isinstance(module, nn.Module) and module.training)
    full = scene("dips")
    assert torch.equal(full.trace.kept, at.trace.kept)
    assert not torch.allclose(full.gradient(full.whole())["input_weight"], thin["input_weight"])
