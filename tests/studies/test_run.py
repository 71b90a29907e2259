import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from dips.data.interactions import from_arrays
from dips.data.synthetic import stream
from dips.errors import ConfigError, DataError
from dips.evaluation.progressive import predict
from dips.evaluation.scoring import roll_out
from dips.recommender.spectral_init import spectral_vectors
from dips.stream.users import EventColumns
from dips.studies.checks import check, device_of, recommender_spec, resolved, split
from dips.studies.run import STACK, _stacks, train_runs
from dips.studies.sketches import prediction_columns
from dips.training.config import TrainConfig
from dips.training.recipes import build_config

SMALL = {"policy": "last", "epochs": 2, "dim": 6, "batch_size": 128, "device": "cpu"}
EXPLICIT = stream(users=40, items=64, events=14)
IMPLICIT = stream(users=40, items=64, events=14, implicit=True)


def config(**settings):
    return TrainConfig.of(**{**SMALL, **settings})


def trained(data, **settings):
    chosen = config(**settings)
    return train_runs([(split(data, chosen), chosen)])[0]


def assert_same_run(left, right):
    assert left.test.metrics == pytest.approx(right.test.metrics, abs=1e-5)
    assert left.valid == pytest.approx(right.valid, abs=1e-5)
    for line, other in zip(left.history, right.history, strict=False):
        assert line == pytest.approx(other, abs=1e-4)
    others = right.trained.recommender.state_dict()
    for name, value in left.trained.recommender.state_dict().items():
        torch.testing.assert_close(value, others[name], atol=1e-4, rtol=1e-3)


STACKS = {
    "seeds": [{"seed": seed} for seed in range(3)],
    "policies": [{"policy": name} for name in ("last", "reservoir", "frequent", "hardest")],
    "rates": [
        {"inner_lr": 0.05, "learning_rate": 0.003},
        {"inner_lr": 0.2, "weight_decay": 0.01},
        {"seed": 5, "inner_lr": 0.1},
    ],
    "periods": [{"every": 1}, {"every": 3}, {"periods": (3, 5, 2)}],
    "everything kept": [{"policy": "all", "seed": seed} for seed in range(2)],
    "patience": [{"patience": 1, "epochs": 4, "learning_rate": rate} for rate in (0.01, 0.0)],
}


@pytest.mark.parametrize("recommender", ["dot", "mlp"])
@pytest.mark.parametrize("stack", list(STACKS))
def test_a_stacked_run_equals_the_single_run(stack, recommender):
    configs = [
        config(**{"policy": "reservoir", "size": 3, "recommender": recommender, **change})
        for change in STACKS[stack]
    ]
    jobs = [(split(EXPLICIT, chosen), chosen) for chosen in configs]
    together = train_runs(jobs)
    assert len(_stacks(configs, "cpu")) == 1
    for job, result in zip(jobs, together, strict=True):
        assert result.config == job[1]
        assert_same_run(result, train_runs([job])[0])


def test_stacked_implicit_runs_equal_single_runs():
    configs = [config(policy=p, seed=s, size=3) for p in ("last", "mix:1") for s in (0, 1)]
    jobs = [(split(IMPLICIT, chosen), chosen) for chosen in configs]
    for job, result in zip(jobs, train_runs(jobs), strict=True):
        assert_same_run(result, train_runs([job])[0])


@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "last"},
        {"policy": "reservoir", "selection": "sampled"},
        {"policy": "learned", "baselines": ()},
        {"task": "implicit", "policy": "last", "loss": "bpr", "negatives": 5},
        {"task": "implicit", "policy": "all", "recommender": "gru", "dropout": 0.5},
    ],
    ids=lambda settings: "-".join(str(value) for value in settings.values()),
)
def test_a_repeat_changes_training_and_not_the_split(settings):
    """Every random number of training comes from the training seed, and only the split does not."""
    data = IMPLICIT if settings.get("task") == "implicit" else EXPLICIT
    first, again = (config(size=3, seed=4, repeat=repeat, **settings) for repeat in (0, 1))
    seeded = config(size=3, seed=again.training.training_seed, **settings)
    parts = split(data, first)
    for part, other in zip(parts, split(data, again), strict=True):
        assert part.user_rows.tolist() == other.user_rows.tolist()
    one, two, same = (train_runs([(parts, chosen)])[0] for chosen in (first, again, seeded))
    assert two.test.metrics == same.test.metrics != one.test.metrics
    assert two.trained.seed == same.trained.seed
    others = same.trained.recommender.state_dict()
    for name, value in two.trained.recommender.state_dict().items():
        assert torch.equal(value, others[name])


def test_a_diverging_run_does_not_affect_stacked_runs():
    configs = [config(inner_lr=rate) for rate in (0.1, 1e6, 0.05)]
    jobs = [(split(EXPLICIT, chosen), chosen) for chosen in configs]
    good, bad, other = train_runs(jobs)
    assert "lower inner_lr first" in bad.error
    assert bad.own is None
    for job, result in ((jobs[0], good), (jobs[2], other)):
        assert not result.error
        assert_same_run(result, train_runs([job])[0])


def test_results_have_the_order_of_the_jobs_and_are_reported_when_finished(monkeypatch):
    monkeypatch.setitem(STACK, "cpu", 2)
    configs = [config(size=size, seed=seed) for size, seed in itertools.product((2, 3), (0, 1, 2))]
    configs = configs[::2] + configs[1::2]
    reported = []
    found = train_runs(
        [(split(EXPLICIT, chosen), chosen) for chosen in configs],
        on_result=lambda index, result: reported.append((index, result.config)),
    )
    assert [result.config for result in found] == configs
    assert sorted(reported, key=lambda entry: entry[0]) == list(enumerate(configs))


def test_every_epoch_is_reported():
    seen = []
    chosen = config(epochs=3)
    parts = split(EXPLICIT, chosen)
    train_runs([(parts, chosen)], on_epoch=seen.append)
    assert [report.epoch for report in seen] == [1, 2, 3]
    assert {(report.runs, report.epochs) for report in seen} == {(1, 3)}
    last = seen[-1]
    assert last.interactions_per_second == pytest.approx(3 * len(parts[0]) / last.seconds)


def test_the_best_epoch_on_validation_is_kept():
    found = trained(EXPLICIT, epochs=6, learning_rate=0.2, batch_size=32)
    scores = [line["valid"] for line in found.history]
    assert min(scores) < scores[-1]  # later epochs are worse
    assert found.own.selection_loss == pytest.approx(min(scores), abs=1e-6)


def test_patience_ends_a_run_early():
    found = trained(EXPLICIT, epochs=50, patience=2, learning_rate=0.2, batch_size=32)
    scores = [line["valid"] for line in found.history]
    assert found.epochs < 50
    assert scores.index(min(scores)) == len(scores) - 3


def test_max_seconds_ends_a_run_early():
    found = trained(EXPLICIT, epochs=500, patience=500, max_seconds=0.3)
    assert found.epochs < 500
    assert 0.3 <= found.seconds < 5


def test_max_users_selects_the_same_users_for_every_seed():
    few = [split(EXPLICIT, config(max_users=15, seed=seed)) for seed in (0, 1)]
    names = [{part.user_id(u) for part in parts for u in range(part.users)} for parts in few]
    assert len(names[0]) == 15
    assert names[0] == names[1]
    assert [part.users for part in few[0]] == [9, 3, 3]
    assert few[0][0].user_rows.tolist() != few[1][0].user_rows.tolist()
    all_users = split(EXPLICIT, config(max_users=1000))
    assert sum(part.users for part in all_users) == EXPLICIT.users


BY_TIME = {"split": "time", "policy": "reservoir", "size": 3}


@pytest.fixture(scope="module")
def by_time():
    return trained(EXPLICIT, **BY_TIME)


def test_split_by_time_has_consecutive_windows_of_every_user():
    train, valid, test = split(EXPLICIT, config(**BY_TIME))
    assert train.users == valid.users == test.users == EXPLICIT.users
    assert (train.warmup == 0).all()
    assert (valid.warmup == train.lengths).all()
    assert (test.warmup == valid.lengths).all()
    assert (test.lengths == EXPLICIT.lengths).all()


def test_split_by_time_scores_only_the_window(by_time):
    test = by_time.parts[2]
    assert by_time.test.count.tolist() == (test.lengths - test.warmup).tolist()
    made = prediction_columns(by_time.trained, test)
    for user in range(test.users):
        steps = made["t"][made["user"] == test.user_id(user)]
        assert steps.tolist() == list(range(test.warmup[user], test.lengths[user]))


def test_split_by_time_continues_sketches(by_time):
    """The predictions of the window equal those of a rollout over the full history."""
    test = by_time.parts[2]
    columns = EventColumns.of(test)
    stack, trace = roll_out(by_time.trained, test, columns)
    _, whole = roll_out(by_time.trained, replace(test, warmup=np.zeros_like(test.warmup)), columns)
    made, every = predict(stack, trace, 0).output, predict(stack, whole, 0).output
    by_event = dict(zip(whole.event.tolist(), every.tolist(), strict=True))
    wanted = [by_event[event] for event in trace.event.tolist()]
    assert made.tolist() == pytest.approx(wanted, abs=1e-6)
    first = trace.step == trace.step.min()
    assert (trace.kept[first] >= 0).all()  # no sketch begins empty


def test_split_by_time_does_not_train_on_the_future(by_time):
    """Ratings after the training windows change nothing but the scores."""
    train = by_time.parts[0]
    rating = EXPLICIT.rating.copy()
    for user in range(train.users):
        rating[train.starts[user] + train.lengths[user] : EXPLICIT.events(user).stop] = 5.0
    other = replace(EXPLICIT, rating=rating)
    again = trained(other, **BY_TIME)
    losses = [line["train_loss"] for line in by_time.history]
    assert [line["train_loss"] for line in again.history] == losses
    assert again.test.metrics != by_time.test.metrics


def test_cuda_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("cuda", "cuda:1"):
        with pytest.raises(ConfigError, match=f"device '{device}': there is no CUDA device here"):
            trained(EXPLICIT, device=device)
    assert device_of(config(device=None)) == "cpu"
    with pytest.raises(ConfigError, match="device 'gpu': choose one of cpu, cuda"):
        device_of(config(device="gpu"))


@pytest.mark.parametrize(
    ("data", "settings", "reason"),
    [
        (
            EXPLICIT,
            {"loss": "softmax"},
            "loss 'softmax' does not fit the task: use mse, bce or cce",
        ),
        (EXPLICIT, {"loss": "mse", "task": "implicit"}, "loss 'mse' does not fit .* use softmax"),
        (IMPLICIT, {"loss": "mse"}, "loss 'mse' does not fit the task: use softmax"),
        (
            IMPLICIT,
            {"task": "explicit"},
            "the explicit task needs ratings, and synthetic-implicit has none",
        ),
        (EXPLICIT, {"policy": "mix:9", "size": 4}, "mix:9 leaves no slot to sample at size 4"),
    ],
)
def test_contradicting_settings_are_refused_before_training(data, settings, reason):
    with pytest.raises(ConfigError, match=reason):
        check(data, config(**settings))


def test_cce_needs_stars():
    rng = np.random.default_rng(0)
    data = from_arrays(np.repeat(np.arange(6), 9), rng.integers(0, 9, 54), rng.random(54))
    with pytest.raises(ConfigError, match="loss 'cce' needs star ratings; data has 54 values"):
        check(data, config(loss="cce"))


def test_ratings_may_be_ignored():
    found = trained(EXPLICIT, task="implicit")
    assert list(found.test.metrics) == ["recall@20", "mrr@20", "ndcg@20"]
    assert found.metrics()["task"] == "implicit"


def test_ratings_are_centred_by_the_mean_of_training_users():
    parts = split(EXPLICIT, config())
    own = np.concatenate([parts[0].rating[parts[0].events(u)] for u in range(parts[0].users)])
    spec = recommender_spec(parts[0], resolved(parts[0], config()))
    assert spec.rating_center == pytest.approx(own.mean())
    assert spec.rating_center != pytest.approx(EXPLICIT.rating.mean(), abs=1e-4)
    assert (spec.low, spec.high) == (own.min(), own.max())


def test_implicit_data_has_its_own_defaults():
    implicit, explicit = (resolved(data, TrainConfig.of()) for data in (IMPLICIT, EXPLICIT))
    assert implicit.model.inner_lr != explicit.model.inner_lr


def test_too_few_users_are_refused():
    data = from_arrays([0, 0, 1], [0, 1, 0], [1.0, 2.0, 3.0])
    with pytest.raises(DataError, match=r"2 user\(s\); a split by users needs at least 3"):
        split(data, config())


def test_parameters_do_not_depend_on_threads() -> None:
    data = stream(users=150, items=80, events=40, seed=3)
    chosen = build_config(flags={"epochs": 2, "policy": "last", "device": "cpu"})
    before = torch.get_num_threads()
    states = []
    try:
        for threads in (1, 2, 2, 2):
            torch.set_num_threads(threads)
            result = train_runs([(split(data, chosen), chosen)], test=False)[0]
            states.append(result.trained.recommender.state_dict())
    finally:
        torch.set_num_threads(before)
    for name, value in states[0].items():
        assert all(torch.equal(value, other[name]) for other in states[1:])


@pytest.mark.parametrize("resketch_epochs", [1, 9])  # 9: training keeps its first sketches
def test_early_stopping_uses_the_reported_sketches(resketch_epochs):
    data = stream(users=80, items=64, events=24)
    result = trained(
        data,
        policy="hardest",
        size=3,
        epochs=4,
        learning_rate=0.05,
        resketch_epochs=resketch_epochs,
    )
    best = min(line["valid"] for line in result.history)
    assert result.own.selection_loss == pytest.approx(best, abs=1e-6)


def test_a_stacked_run_reports_its_own_epochs():
    hasty = config(patience=1, epochs=6, learning_rate=0.3)
    patient = config(patience=6, epochs=6)
    jobs = [(split(EXPLICIT, each), each) for each in (hasty, patient)]
    stacked, single = train_runs(jobs, test=False)[0], train_runs(jobs[:1], test=False)[0]
    assert single.epochs < 6
    assert stacked.epochs == single.epochs
    assert len(stacked.history) == len(single.history)


def test_runs_with_different_inner_loops_are_not_stacked():
    changes = [{}, {"lr_schedule": "constant"}, {"user_lr": 0.1}, {"user_lr": 0.2}]
    configs = [config(**change) for change in changes]
    assert _stacks(configs, "cpu") == [[0], [1], [2, 3]]


@pytest.mark.parametrize("policy", ["all", "last"])
def test_sequential_recommenders_start_from_spectral_embeddings(policy):
    user, item = np.divmod(np.arange(400), 10)  # 40 users of two circles; no item repeats
    item = (item + 3 * user) % 20 + 20 * (user % 2)
    once = from_arrays(user, item, None, np.arange(400))
    chosen = config(recommender="gru", policy=policy, learning_rate=0.0, epochs=1, dim=16, seed=3)
    result = train_runs([(split(once, chosen), chosen)])[0]
    spec, model = result.trained.spec, result.trained.recommender
    assert (spec.repeat_feature, spec.filter_sketch, spec.cosine) == (False, True, True)
    start = spectral_vectors(split(once, chosen)[0], 16, torch.Generator().manual_seed(3))
    torch.testing.assert_close(model.vectors.detach(), start)
    plain = trained(once, **{**chosen.to_dict(), "filter_sketch": False, "cosine": False})
    assert result.test.metrics["recall@20"] > plain.test.metrics["recall@20"] + 0.1


def test_filter_sketch_changes_rankings_but_not_training():
    user, item = np.divmod(np.arange(400), 10)
    once = from_arrays(user, (item + 3 * user) % 20, None, np.arange(400))  # no item repeats
    filtered, plain = (trained(once, epochs=1, filter_sketch=given) for given in (None, False))
    others = plain.trained.recommender.state_dict()
    for name, value in filtered.trained.recommender.state_dict().items():
        assert torch.equal(value, others[name])
    assert filtered.resolved.config.model.filter_sketch
    for found, other in (
        (filtered.valid, plain.valid),
        (filtered.test.metrics, plain.test.metrics),
    ):
        assert found["mrr@20"] > other["mrr@20"]


@pytest.mark.parametrize(
    "name", ["repeat_feature", "recency_decay", "tie_embeddings", "filter_sketch", "cosine"]
)
def test_runs_with_different_recommender_features_are_not_stacked(name):
    configs = [config(**{name: value}) for value in (False, True)]
    assert len(_stacks(configs, "cpu")) == 2


@pytest.mark.parametrize(("distinct", "expected"), [(20, ["last"]), (4, ["last", "frequent"])])
def test_default_baselines_depend_on_the_data(distinct, expected):
    user, item = np.divmod(np.arange(400), 10)
    data = from_arrays(user, (item + 3 * user) % distinct, None, np.arange(400))
    result = trained(data, policy="learned", baselines=("last", "frequent"), epochs=1, dim=4)
    assert [one.name for one in result.baselines] == expected
    # The settings as asked are not changed.
    assert result.config.policy_training.baselines == ("last", "frequent")
