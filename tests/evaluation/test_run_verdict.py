"""The verdict on one run: when it credits the policy, and when it does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dips.data.splitting import validation_halves
from dips.data.synthetic import stream
from dips.evaluation.progressive import Scores
from dips.evaluation.run_verdict import (
    BASELINE,
    OWN,
    GainParts,
    Interval,
    compare_on_test,
    decide,
    diverged_verdict,
    gain_parts,
    measure_gain,
    objective_of_users,
    share_of_different_sketches,
)
from dips.evaluation.scoring import roll_out
from dips.rollout.trace import StoredTrace
from dips.stream.users import EventColumns, make_stream
from dips.studies.run import train_runs
from dips.training.config import TrainConfig

USERS = 60
GAIN = Interval(0.02, 0.015, 0.025)
NOTHING = Interval(0.0, -0.002, 0.002)
OPEN = Interval(0.004, -0.01, 0.02)
LOSS = Interval(-0.02, -0.025, -0.015)


def parts(total=GAIN, sketches=GAIN, recommender=NOTHING, differ=0.9) -> GainParts:
    return GainParts("rmse", total, sketches, recommender, differ)


CASES = {
    "identical sketches": (parts(differ=0.0), {}, "last", "keep the same interactions for every"),
    "baseline kept": (parts(NOTHING, NOTHING), {"baseline_kept": True}, "last", "not better by"),
    "baseline kept, too little data": (
        parts(OPEN, OPEN), {"baseline_kept": True}, "undecided", "too little data"
    ),
    "the halves contradict": (parts(), {"baseline_kept": True}, "undecided", "the other learned"),
    "initial policy kept": (parts(), {"is_initial": True}, "learned", "as it was initialised"),
    "recommender only": (parts(sketches=NOTHING), {}, "last", "the recommender makes the gain"),
    "recommender or sketches": (parts(sketches=OPEN), {}, "undecided", "whether its sketches are"),
    "real gain": (parts(), {}, "learned", "learned is better"),
    "real loss": (parts(LOSS, LOSS), {}, "last", "learned is worse"),
    "equivalent": (parts(NOTHING, NOTHING), {}, "last", "not better by +0.5 % or more"),
    "too little data to tell": (parts(OPEN, OPEN), {}, "undecided", "too little data to tell"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_case_has_its_advice_and_its_reason(case):
    gains, about, advice, words = CASES[case]
    found = decide("learned", "last", gains, **about)
    assert (found.advice, words in found.reason) == (advice, True), found.reason


def test_the_verdict_says_what_was_kept_and_never_credits_learning_for_it():
    trained = decide("learned", "last", parts())
    initial = decide("learned", "last", parts(), is_initial=True)
    baseline = decide("learned", "last", parts(LOSS, LOSS), baseline_kept=True)
    assert [one.kept for one in (trained, initial, baseline)] == [
        "learned", "learned (initial policy)", "last",
    ]  # fmt: skip
    assert "The run is learned, trained." in trained.reason
    assert "no training of the policy was kept" in initial.reason
    assert "The run is the baseline last" in baseline.reason
    assert not any("trained." in one.reason for one in (initial, baseline))


def test_the_verdict_as_json_has_the_keys_of_the_contract():
    found = decide("learned", "last", parts(), test=LOSS).to_dict()
    assert list(found) == [
        "advice", "reason", "kept", "baseline", "metric", "part", "gain", "low", "high",
        "sketches_differ", "gain_from_sketches", "gain_from_recommender", "test",
    ]  # fmt: skip
    assert (found["part"], found["gain"], found["gain_from_sketches"]) == ("valid", 0.02, 0.02)
    assert found["test"] == {"gain": -0.02, "low": -0.025, "high": -0.015}
    assert "On test users: -2.0 % (95 % interval -2.5 % to -1.5 %)" in found["reason"]
    assert decide("learned", "last", parts()).to_dict()["test"] is None


def test_a_diverged_policy():
    found = diverged_verdict("learned", "last", "rmse")
    assert (found.advice, found.kept, found.gain) == ("last", "last", None)
    assert "diverged" in str(found)


def scores(rmse: float, noise: float = 0.0, phase: float = 0.0) -> Scores:
    """Return scores of users with ten predictions each."""
    wobble = noise * torch.sin(37.0 * torch.arange(USERS, dtype=torch.float64) + phase)
    total = 10 * (rmse**2 + wobble)
    mean = float(total.sum() / (10 * USERS)) ** 0.5
    return Scores({"rmse": mean}, torch.full((USERS,), 10.0), {"squared_error": total})


def crossed(own_own, own_reads, own_kept, none):
    """Scores by (recommender, sketches)."""
    order = [(OWN, OWN), (OWN, BASELINE), (BASELINE, OWN), (BASELINE, BASELINE)]
    return dict(zip(order, map(scores, (own_own, own_reads, own_kept, none)), strict=True))


def test_a_gain_is_divided_by_both_orders_of_the_change():
    found = gain_parts(crossed(0.90, 0.98, 0.95, 1.0), 1.0)
    assert found.total.gain == pytest.approx(0.10)
    assert found.sketches.gain == pytest.approx(((0.98 - 0.90) + (1.0 - 0.95)) / 2)
    assert found.recommender.gain == pytest.approx(((0.95 - 0.90) + (1.0 - 0.98)) / 2)
    assert found.sketches.gain + found.recommender.gain == pytest.approx(found.total.gain)


def test_a_gain_of_the_recommender_alone_is_not_credited_to_the_sketches():
    found = gain_parts(crossed(0.95, 0.95, 1.0, 1.0), 1.0)
    assert found.sketches.gain == pytest.approx(0.0)
    assert decide("learned", "last", found).advice == "last"


def test_higher_recall_is_better():
    found = {
        pair: Scores(
            {"recall@20": value},
            torch.full((4,), 10.0),
            {"recall@20": torch.full((4,), value * 10)},
        )
        for pair, value in zip(crossed(1, 1, 1, 1), (0.22, 0.20, 0.22, 0.20), strict=True)
    }
    assert gain_parts(found, 1.0).total.gain == pytest.approx(0.1)


def test_intervals_cover_the_users():
    sharp = compare_on_test(scores(0.9), scores(1.0))
    vague = compare_on_test(scores(0.99, noise=0.9), scores(1.0, noise=0.9, phase=2.0))
    assert sharp.low == pytest.approx(sharp.high) == pytest.approx(0.1)
    assert vague.low < 0 < vague.high


def test_halves_of_the_validation_users_are_disjoint():
    for users in (1, 2, 7, 30):
        halves = validation_halves(users)
        both = np.concatenate(halves)
        assert sorted(set(both.tolist())) == list(range(users))
        assert len(both) == max(users, 2)
    assert sorted(validation_halves(30).selection) != list(range(15))  # at random


def test_the_objective_of_some_users():
    total = torch.tensor([1.0, 4.0, 9.0], dtype=torch.float64)
    found = Scores({"rmse": 0.0}, torch.ones(3), {"squared_error": total})
    assert objective_of_users(found, np.array([1])) == 2.0
    ranked = Scores({"recall@20": 0.0}, torch.ones(3), {"recall@20": total})
    assert objective_of_users(ranked, np.array([0, 2])) == -5.0


DATA = stream(users=40, items=64, events=14)


def config(**settings):
    return TrainConfig.of(epochs=2, dim=6, size=3, batch_size=128, device="cpu", **settings)


@pytest.fixture(scope="module")
def trained():
    """Runs of three policies, and the learned one at its start, where it equals `last`."""
    split = DATA.split_users(seed=0)
    settings = {"baselines": (), "policy_freeze_epochs": 0}
    configs = [config(policy=name, **settings) for name in ("last", "reservoir")]
    configs.append(config(policy="learned", policy_lr=0.0, initial_policy="last", **settings))
    return split, [train_runs([(split, one)])[0] for one in configs]


def test_sketches_differ_where_policies_do(trained):
    (_, _, test), (last, reservoir, start) = trained
    columns = EventColumns.of(test)

    def trace(result) -> StoredTrace:
        return roll_out(result.trained, test, columns)[1]

    assert share_of_different_sketches(trace(last), trace(start)) == 0.0
    share = share_of_different_sketches(trace(last), trace(reservoir))
    differ = {
        int(user)
        for user, one, other in zip(
            trace(last).user, trace(last).kept, trace(reservoir).kept, strict=True
        )
        if set(one.tolist()) != set(other.tolist())
    }
    assert share == len(differ) / test.users > 0.5


def test_the_gain_of_a_run_equals_its_scores(trained):
    (_, _, test), (last, reservoir, _) = trained
    users = make_stream([test], EventColumns.of(test))
    found = measure_gain(last.trained, reservoir.trained, users)
    base = reservoir.test.metrics["rmse"]
    assert found.total.gain == pytest.approx((base - last.test.metrics["rmse"]) / base, rel=1e-5)
    assert found.total.gain == pytest.approx(compare_on_test(last.test, reservoir.test).gain)


def test_a_policy_that_keeps_its_start_is_not_called_learned(trained):
    split, (last, _, start) = trained
    assert start.kept.is_initial
    assert not last.kept.is_initial
    run = config(
        policy="learned", policy_lr=0.0, initial_policy="last", baselines=("reservoir",),
        policy_freeze_epochs=0,
    )  # fmt: skip
    found = train_runs([(split, run)])[0].verdict
    assert found.kept in ("learned (initial policy)", "reservoir")


def test_the_verdict_is_measured_on_users_that_did_not_select(trained):
    split, (_, _, start) = trained
    run = config(
        policy="learned", policy_lr=0.0, initial_policy="last", baselines=("reservoir",),
        policy_freeze_epochs=0,
    )  # fmt: skip
    found = train_runs([(split, run)])[0]
    half = split[1].select(validation_halves(split[1].users).verdict)
    users = make_stream([half], EventColumns.of(half))
    expected = measure_gain(start.trained, found.baselines[0].trained, users)
    assert found.verdict.gain == pytest.approx(expected.total.gain)
    assert found.verdict.sketches_differ == expected.sketches_differ


def test_a_learned_policy_with_other_parameters_is_not_initial(trained):
    _, (_, _, start) = trained
    moved = replace(start.kept.trained, seed=start.kept.trained.seed + 1)
    assert not replace(start.kept, trained=moved).is_initial


def test_a_policy_that_was_not_trained_here_is_not_called_trained():
    gain = Interval(0.02, 0.01, 0.03)
    parts = GainParts("rmse", gain, gain, gain, sketches_differ=1.0)
    found = {name: decide(name, "last", parts) for name in ("pretrained", "learned")}
    assert "its policy was not trained on this data" in found["pretrained"].reason
    assert "The run is learned, trained." in found["learned"].reason
