"""Policy training: order of updates, warm-up and freeze epochs, reverts, and stacked runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dips.training import epoch
from dips.training.batches import FullHistoryBlock, IntervalBlock, TrainingBlock, interleave
from dips.training.policy_batches import PolicyBatch
from dips.training.rollouts import TrainingRollouts
from dips.training.state import TrainingState

Make = Callable[..., Any]
QUICK: dict[str, Any] = {"policy_warmup_epochs": 0, "policy_freeze_epochs": 0, "policy_lr": 0.01}
UPDATE_SETTINGS: dict[str, dict[str, Any]] = {
    "whole": {"policy_batch_size": 20},
    "user_batches": {"user_batch": 3, "policy_batch_size": 8, "batch_size": 8},
    "update_interval": {"update_interval": 2, "user_batch": 3, "batch_size": 5},
    "steps": {"update_interval": 1},
}
BY_UPDATE_SETTINGS = pytest.mark.parametrize(
    "update_settings", UPDATE_SETTINGS.values(), ids=UPDATE_SETTINGS
)


def _losses(fit_state: TrainingState, run: int) -> list[float]:
    history = fit_state.progress.history
    return [line[name][run] for line in history for name in ("train_loss", "valid")]


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        ("learned", "whole"),
        ("learned", "user_batches"),
        ("learned", "steps"),
        ("dips", "update_interval"),
    ],
)
def test_a_stacked_run_equals_the_single_run(lab: Make, policy: str, name: str) -> None:
    """Runs differ in users, lengths, rates and numbers of policy batches.

    They run in float64, because Adam makes large steps of gradients that are 0 up to rounding.
    """
    world = lab(double=True)
    credit = "survival" if policy == "learned" else "identity"
    settings = [{"seed": 1, "policy_lr": 0.03}, {"seed": 2, "policy_weight_decay": 0.1}]
    jobs = [
        world.job(
            policy=policy, credit=credit, epochs=2, **{**QUICK, **UPDATE_SETTINGS[name], **each}
        )
        for each in settings
    ]
    assert len({len(job.train) for job in jobs}) > 1
    stacked = world.train(jobs)
    for run, job in enumerate(jobs):
        single = world.train([job])
        assert _losses(stacked, run) == pytest.approx(_losses(single, 0), abs=1e-4)
        for key, value in single.parameters().items():
            torch.testing.assert_close(
                stacked.parameters()[key][run], value[0], atol=2e-4, rtol=1e-3
            )


@BY_UPDATE_SETTINGS
def test_a_stacked_static_run_equals_the_single_run(
    lab: Make, update_settings: dict[str, Any]
) -> None:
    world = lab()
    for policy in ("reservoir", "all"):
        jobs = [world.job(policy=policy, seed=seed, epochs=2, **update_settings) for seed in (1, 2)]
        stacked = world.train(jobs)
        for run, job in enumerate(jobs):
            single = world.train([job])
            assert _losses(stacked, run) == pytest.approx(_losses(single, 0), abs=1e-5)


@BY_UPDATE_SETTINGS
@pytest.mark.parametrize("policy", ["last", "hardest", "all", "learned"])
def test_every_prediction_is_used_once_per_epoch(
    lab: Make, monkeypatch: pytest.MonkeyPatch, policy: str, update_settings: dict[str, Any]
) -> None:
    world = lab()
    job = world.job(policy=policy, epochs=2, **update_settings)
    seen: list[Counter[tuple[int, int]]] = []
    plain = epoch._EpochUpdates.learn

    def spy(policy_batches: Any, block: TrainingBlock, after_batch: Any) -> None:
        if len(seen) < policy_batches.epoch:
            seen.append(Counter())
        rows = torch.cat(
            [*block.batches([0], policy_batches.epoch, job.config.training.batch_size)], 1
        )[0]
        trace = block.trace
        seen[-1].update((int(trace.user[r]), int(trace.step[r])) for r in rows.tolist() if r >= 0)
        plain(policy_batches, block, after_batch)

    monkeypatch.setattr(epoch._EpochUpdates, "learn", spy)
    fit_state = world.train([job])
    everything = {(u, t) for u, n in enumerate(job.train.lengths.tolist()) for t in range(n)}
    assert [set(count) for count in seen] == [everything] * 2
    assert all(set(count.values()) == {1} for count in seen)
    losses = [line["train_loss"][0] for line in fit_state.progress.history]
    assert all(math.isfinite(loss) for loss in losses)
    steps = int(fit_state.steps[0])
    assert steps > (
        2 if update_settings.get("user_batch") or update_settings.get("update_interval") else 1
    )


def test_user_batches_are_sampled_again_each_epoch(lab: Make) -> None:
    world = lab()
    jobs = [world.job(user_batch=3, update_interval=4, seed=seed) for seed in (0, 1)]
    rollouts = TrainingRollouts(jobs, world.columns)
    stack = world.start(jobs).stack
    user_batches: list[list[list[int]]] = []
    for number in (1, 2, 1):
        blocks = [b for b in rollouts.blocks(number, stack, None) if b.is_last]
        assert all(isinstance(block, IntervalBlock) for block in blocks)
        found = []
        for block in blocks:
            first, last = block.trace.run_rows[:2]
            found.append(sorted(set(block.trace.user[first:last].tolist())))
        assert sorted(user for user_batch in found for user in user_batch) == list(range(8))
        user_batches.append(found)
    assert user_batches[0] == user_batches[2] != user_batches[1]
    skipped = [b for b in rollouts.blocks(1, stack, None, 2) if b.is_last]
    assert len(skipped) == len(user_batches[0]) - 2


@pytest.mark.parametrize("policy", ["learned", "dips"])
def test_equal_seeds_give_equal_results(lab: Make, policy: str) -> None:
    world = lab()
    one, two = (world.train([world.job(policy=policy, seed=3, **QUICK)]) for _ in range(2))
    for name, value in one.tensors().items():
        assert torch.equal(two.tensors()[name], value), name
    assert one.progress.history == two.progress.history


@BY_UPDATE_SETTINGS
def test_the_policy_is_constant_in_warmup_and_freeze_epochs(
    lab: Make, update_settings: dict[str, Any]
) -> None:
    world = lab()
    states: list[dict[str, torch.Tensor]] = []

    def watch(fit_state: TrainingState) -> None:
        states.append({name: value.clone() for name, value in fit_state.parameters().items()})

    job = world.job(
        policy="learned",
        epochs=6,
        **{**QUICK, "policy_warmup_epochs": 2, "policy_freeze_epochs": 1},
        **update_settings,
    )
    first = world.start([job]).parameters()
    world.train([job], on_epoch=watch)
    moved = []
    for before, after in zip([first, *states], states, strict=False):
        changed = {
            name.split(".")[0] for name in after if not torch.equal(before[name], after[name])
        }
        assert "recommender" in changed
        moved.append("policy" in changed)
    assert moved == [False, False, True, True, True, False]


def test_a_policy_is_trained_for_at_least_one_epoch(lab: Make) -> None:
    world = lab()
    job = world.job(policy="learned", epochs=2, policy_warmup_epochs=1, policy_freeze_epochs=2)
    before = world.start([job]).policies.state["output"]
    assert not torch.equal(world.train([job]).policies.state["output"], before)


def test_the_user_prior_has_its_own_optimizer(lab: Make) -> None:
    """With `user_lr`, SGD updates the user prior and Adam does not."""
    world = lab()
    job = world.job(user_lr=0.05, epochs=1, batch_size=10**6, lr_schedule="constant")
    fit_state = world.start([job])
    assert sorted(fit_state.optimizers) == ["items", "user"]
    assert "user_prior" not in fit_state.optimizers["items"].first
    before = fit_state.stack.state["user_prior"].clone()
    trained = world.train([job])
    momentum = trained.optimizers["user"].momentum["user_prior"]
    after = trained.stack.state["user_prior"]
    torch.testing.assert_close(
        after, before - 0.05 * momentum
    )  # after one step, momentum is the gradient
    assert float((after - before).abs().max()) > 1e-4
    plain = world.train([world.job(epochs=1, batch_size=10**6, lr_schedule="constant")])
    assert sorted(plain.optimizers) == ["items"]
    for name in ("vectors", "bias", "user_bias_scale"):
        assert torch.equal(plain.stack.state[name], trained.stack.state[name])
    assert not torch.equal(plain.stack.state["user_prior"], after)


def _policy_batch(rows: list[list[int]]) -> PolicyBatch:
    predicted = torch.tensor(rows)
    return PolicyBatch(predicted, predicted, predicted[..., None])


@pytest.mark.parametrize(
    "counts", [[(5, 3), (5, 3)], [(5, 3), (2, 2)], [(3, 7), (4, 2)], [(2, 2), (0, 0)]]
)
def test_interleaved_updates_of_a_stack_equal_those_of_single_runs(
    counts: list[tuple[int, int]],
) -> None:
    """`counts` holds (batches, policy batches) of two runs; entries hold batch numbers."""
    many, most = (max(column) for column in zip(*counts, strict=True))
    batches = [torch.tensor([[i if i < b else -1] for b, _ in counts]) for i in range(many)]
    policy_batches = [_policy_batch([[i if i < n else -1] for _, n in counts]) for i in range(most)]
    updates: list[list[str]] = [[], []]
    for batch, due in interleave(batches, policy_batches):
        for run in (0, 1):
            updates[run] += [f"batch {int(batch[run])}"] if int(batch[run]) >= 0 else []
            updates[run] += [
                f"policy batch {int(one.predicted[run])}"
                for one in due
                if int(one.predicted[run]) >= 0
            ]
            assert all(int(one.prediction_places[run]) == int(one.predicted[run]) for one in due)
    for run, (b, n) in enumerate(counts):
        expected = []
        for i in range(b):
            expected.append(f"batch {i}")
            expected += [f"policy batch {k}" for k in range(i * n // b, (i + 1) * n // b)]
        assert updates[run] == expected


def test_a_single_policy_batch_comes_after_all_batches() -> None:
    batches = [torch.tensor([[i]]) for i in range(3)]
    assert [len(due) for _, due in interleave(batches, [_policy_batch([[0]])])] == [0, 0, 1]
    assert [len(due) for _, due in interleave(batches, [])] == [0, 0, 0]


def test_batches_of_an_interval_do_not_depend_on_padding(lab: Make) -> None:
    """Padded users and steps without users come last."""
    world = lab()
    trace = next(
        TrainingRollouts([world.job(update_interval=1)], world.columns).blocks(1, None, None)
    ).trace
    base, length = torch.tensor([[0, 6, 11]]), torch.tensor([[6, 5, 3]])
    single = IntervalBlock(trace, base, length, range(2, 6)).batches([0], 1, 3)
    assert [rows[rows >= 0].tolist() for rows in single] == [[2, 3, 4], [5, 8, 9], [10, 13], []]
    more = [torch.nn.functional.pad(field, (0, 2)) for field in (base, length)]
    padded = IntervalBlock(trace, *more, range(2, 9)).batches([0], 1, 3)
    for mine, other in zip(padded, single, strict=False):
        assert torch.equal(mine, other)
    assert all(bool((rows == -1).all()) for rows in padded[len(single) :])
    (everything,) = IntervalBlock(trace, base, length, range(2, 6)).batches([0], 1, 0)
    assert everything.shape == (1, 12)


def test_every_block_of_whole_histories_is_the_last_of_its_user_batch(lab: Make) -> None:
    world = lab()
    jobs = [world.job(user_batch=3)]
    blocks = list(TrainingRollouts(jobs, world.columns).blocks(1, world.start(jobs).stack, None))
    assert all(isinstance(block, FullHistoryBlock) and block.is_last for block in blocks)
    assert len(blocks) == 3


@BY_UPDATE_SETTINGS
@pytest.mark.parametrize("revert_tolerance", [math.inf, 0.1])
def test_a_policy_update_with_worse_validation_is_reverted(
    lab: Make, update_settings: dict[str, Any], revert_tolerance: float
) -> None:
    """The policy is restored, its rate is halved, and the recommender keeps its updates."""
    world = lab()
    scores = {1: [1.0, 1.0], 2: [1.05, 1.2], 3: [1.0, 1.0]}  # validation of each run, by epoch
    states: list[dict[str, torch.Tensor]] = []

    def watch(fit_state: TrainingState) -> None:
        states.append({name: value.clone() for name, value in fit_state.parameters().items()})

    jobs = [
        world.job(
            policy="learned",
            seed=seed,
            epochs=3,
            revert_tolerance=revert_tolerance,
            **QUICK,
            **update_settings,
        )
        for seed in (1, 2)
    ]
    calls = iter(scores.values())
    fit_state = world.train(jobs, on_epoch=watch, validate=lambda stack, trace: next(calls))
    first, second, third = states
    same = {
        run: all(torch.equal(second[n][run], first[n][run]) for n in first if "policy" in n)
        for run in (0, 1)
    }
    assert same == {0: False, 1: revert_tolerance < 1}
    scale = 0.75 if revert_tolerance < 1 else 1.0  # halved, then recovered by half
    assert fit_state.progress.policy_lr_scale == [1.0, scale]
    assert not torch.equal(second["recommender.bias"][1], first["recommender.bias"][1])
    assert not torch.equal(third["policy.output"][1], second["policy.output"][1])


@pytest.mark.parametrize("recommender", ["gru", "sasrec"])
@pytest.mark.parametrize("policy", ["dips", "learned"])
def test_a_policy_learns_from_a_recommender_that_reads_in_order(
    lab: Make, policy: str, recommender: str
) -> None:
    """The recommender is random and almost constant, so only other sketches lower the loss."""
    world, loss = lab(explicit=False, double=True, recommender=recommender), {}
    for warmup in (0, 100):  # the second policy is never updated
        settings = {**QUICK, "policy_warmup_epochs": warmup, "policy_lr": 0.05, "epochs": 12}
        job = world.job(policy=policy, learning_rate=1e-9, dropout=0.0, queue=50, **settings)
        fit_state = world.start([job])
        generator = torch.Generator().manual_seed(3)
        for name, value in fit_state.parameters().items():
            if name.startswith("recommender.") and "repeat" not in name:
                value += torch.randn(value.shape, generator=generator, dtype=value.dtype) / 2
        world.fit(fit_state, [job])
        loss[warmup] = [line["train_loss"][0] for line in fit_state.progress.history]
    assert loss[100][-1] == pytest.approx(loss[100][0], rel=1e-6)
    assert min(loss[0]) < 0.99 * loss[100][0]
