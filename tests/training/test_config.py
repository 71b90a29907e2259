"""Settings: refused when unknown or out of range; recipe < file < flags."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from dips.errors import ConfigError
from dips.training.config import TrainConfig
from dips.training.recipes import RECIPES, baseline_config, build_config


def test_every_setting_has_a_sentence() -> None:
    for item in dataclasses.fields(TrainConfig):
        assert item.metadata["help"].endswith("."), item.name


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"size": 0}, "size is 0: it must be at least 1"),
        ({"every": -1}, "every is -1: it must be at least 1"),
        ({"learning_rate": -0.1}, "learning_rate is -0.1: it must be at least 0"),
        ({"epochs": 0}, "epochs is 0: it must be at least 1"),
        ({"loss": "mae"}, "loss is 'mae': choose one of auto, mse"),
        ({"choice": "best"}, "choice is 'best': choose one of greedy, sampled"),
        ({"recommender": "tree"}, "recommender is 'tree'"),
        ({"periods": (2, 0)}, "periods [2, 0]: each must be at least 1"),
        (
            {"policy_weight_decay": float("nan")},
            "policy_weight_decay is nan: it must be at least 0",
        ),
        ({"weight_decay": -2.0}, "weight_decay is -2.0: it must be at least -1"),
        ({"size": "four"}, "size is 'four': it must be a whole number"),
        ({"size": 2.5}, "size is 2.5: it must be a whole number"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast': it must be a number"),
        ({"policy": 3}, "policy is 3: it must be text"),
        ({"periods": 3}, "periods is 3: it must be a list of whole numbers"),
    ],
)
def test_a_value_that_does_not_fit(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        TrainConfig().but(**changes)


def test_an_unknown_setting() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'sise': known are lr_schedule, .*size"):
        TrainConfig().but(sise=3)


def test_the_schedule() -> None:
    assert TrainConfig(every=4).schedule.periods == (4,)
    assert TrainConfig(every=4, periods=(3, 5)).schedule.periods == (3, 5)
    assert TrainConfig(periods=[3, 5]).periods == (3, 5)  # type: ignore[arg-type]


def test_recipe_then_file_then_flags(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('size = 8\nepochs = 3\npolicy = "reservoir"\nperiods = [2, 3]\n')
    config = build_config("quick", file, {"epochs": 5, "dim": 4})
    assert config.batch == RECIPES["quick"]["batch"]  # recipe
    assert (config.size, config.policy, config.periods) == (8, "reservoir", (2, 3))  # file
    assert (config.epochs, config.dim) == (5, 4)  # flags
    assert config.learning_rate == TrainConfig().learning_rate


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("size = 8\nepoch = 3", "unknown setting 'epoch'"),
        ("size = ", "not a TOML file"),
        ("size = 0", "size is 0"),
    ],
)
def test_a_file_that_does_not_fit(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        build_config(file=file)


def test_a_missing_file_and_an_unknown_recipe(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such configuration file"):
        build_config(file=tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="unknown recipe 'best': choose one of default, quick"):
        build_config("best")


def test_survives_json() -> None:
    config = TrainConfig(periods=(3, 5), size=8)
    assert TrainConfig(**json.loads(json.dumps(config.to_dict()))) == config


def test_one_schedule_is_enough() -> None:
    with pytest.raises(ConfigError, match="every and periods"):
        build_config(flags={"every": 2, "periods": (2, 3)})


def test_the_papers_policies_take_the_papers_recipe() -> None:
    config = build_config(flags={"policy": "dips"})
    assert (config.stretch, config.users, config.queue, config.credit) == (1, 256, 100, "identity")
    assert config.learning_rate == RECIPES["paper"]["learning_rate"]
    alone = build_config(flags={"policy": "dips@1"})
    assert (alone.stretch, alone.queue) == (1, 1)
    quick = build_config("default", flags={"policy": "dips@1"})
    assert (quick.stretch, quick.queue, quick.credit) == (0, 1, "identity")
    assert build_config(flags={"policy": "dips", "queue": 7}).queue == 7
    small = build_config("paper-128", flags={"policy": "dips"})
    assert (small.users, small.queue, small.learning_rate) == (128, 50, 1e-5)
    assert build_config("paper-128", flags={"policy": "dips@1"}).queue == 1
    assert build_config("default", flags={"policy": "dips"}).queue == 100
    assert build_config(flags={"policy": "learned"}).stretch == 0


@pytest.mark.parametrize(
    ("rows", "implicit", "expected"),
    [(100, False, (64, 256)), (14_400, False, (256, 256)), (600_000, False, (4096, 8192)),
     (10**8, False, (4096, 16384)), (600_000, True, (1024, 4096))],
)  # fmt: skip
def test_batches_suit_the_data(rows: int, implicit: bool, expected: tuple[int, int]) -> None:
    config = TrainConfig().fitted(rows, 10, 5, implicit=implicit)
    assert (config.batch, config.policy_batch_size) == expected
    given = TrainConfig(batch=7, policy_batch_size=9).fitted(rows, 10, 5, implicit=implicit)
    assert (given.batch, given.policy_batch_size) == (7, 9)


@pytest.mark.parametrize(
    ("settings", "user_batch"), [({}, 0), ({"walks": 4}, 3), ({"walks": 4, "users": 5}, 5)]
)
def test_users_walk_in_companies(settings, user_batch):
    assert TrainConfig(**settings).fitted(100, 10, 5, implicit=False).users == user_batch


@pytest.mark.parametrize(
    ("rows", "implicit", "user_batch"),
    [(29_999, False, 0), (30_000, False, 500), (600_000, False, 250), (11_999, True, 0),
     (36_000, True, 250)],
)  # fmt: skip
def test_a_policy_that_learns_walks_as_often_as_the_data_allows(rows, implicit, user_batch):
    config = build_config(flags={"policy": "learned"}, implicit_data=implicit)
    assert config.fitted(rows, 1000, 50, implicit=implicit).users == user_batch
    static = build_config(flags={"policy": "last"}, implicit_data=implicit)
    assert static.fitted(rows, 1000, 50, implicit=implicit).users == 0


@pytest.mark.parametrize(
    ("items", "given", "taken"),
    [(100, -1.0, 1e-3), (200, -1.0, 2e-3), (10**6, -1.0, 3e-3), (100, 0.0, 0.0), (100, 0.5, 0.5)],
)
def test_decay_falls_with_what_is_known_of_an_item(items, given, taken):
    config = TrainConfig(weight_decay=given).fitted(10_000, 10, items, implicit=False)
    assert config.weight_decay == pytest.approx(taken)


def test_a_rival_has_its_own_defaults_and_what_was_asked_for():
    ours = build_config(flags={"policy": "learned", "seed": 3, "dim": 8, "epochs": 5})
    baseline = baseline_config(ours, "last", implicit_data=False)
    assert baseline == build_config(flags={"policy": "last", "seed": 3, "dim": 8, "epochs": 5})
    implicit = build_config(flags={"policy": "learned", "seed": 3}, implicit_data=True)
    assert baseline_config(implicit, "frequent", implicit_data=True) == build_config(
        flags={"policy": "frequent", "seed": 3}, implicit_data=True
    )
    turned = build_config(flags={"policy": "learned", "task": "implicit", "inner_lr": 0.7})
    assert baseline_config(turned, "last", implicit_data=False) == build_config(
        flags={"policy": "last", "task": "implicit", "inner_lr": 0.7}
    )


@pytest.mark.parametrize(
    ("implicit", "repeats", "taken"),
    [(True, 0.0, (0, 1, 1, 1.0, 1e-3, 0, 1)), (True, 0.09, (0, 1, 1, 1.0, 1e-3, 0, 0)),
     (True, 0.1, (1, 1, 0, 0.2, 3e-2, 0, 0)), (False, 0.0, (0, 0, 0, 0.2, 3e-3, 1, 0))],
)  # fmt: skip
def test_settings_suit_items_that_come_back(implicit, repeats, taken):
    config = build_config(flags={"policy": "learned"}, implicit_data=implicit)
    fitted = config.fitted(1000, 10, 500, implicit=implicit, repeats=repeats)
    assert config.policy_lr == (1e-3 if implicit else 3e-3)
    names = (
        "repeat_feature",
        "recency_decay",
        "separate_input",
        "inner_lr",
        "weight_decay",
        "residual",
        "predicted_score",
    )
    assert tuple(getattr(fitted, name) for name in names) == taken
    given = {"repeat_feature": 0, "recency_decay": 0, "separate_input": 0, "inner_lr": 0.7, "weight_decay": 0.0,
             "residual": 1, "predicted_score": 1 - taken[-1]}  # fmt: skip
    fitted = config.but(**given).fitted(1000, 10, 500, implicit=implicit, repeats=repeats)
    assert {name: getattr(fitted, name) for name in given} == given
    pulled = config.but(prior_penalty=0.1).fitted(1000, 10, 500, implicit=implicit, repeats=repeats)
    assert pulled.predicted_score == 0  # it would have to read
    for recipe in ("paper", "paper-128"):  # the paper's recommender knows nothing of all this
        for recommender in ("dot", "gru"):
            flags = {"policy": "dips", "recommender": recommender}
            paper = build_config(recipe, flags=flags, implicit_data=implicit)
            paper = paper.fitted(1000, 10, 500, implicit=implicit, repeats=repeats)
            names = (
                "repeat_feature",
                "filter_sketch",
                "cosine",
                "recency_decay",
                "separate_input",
                "predicted_score",
            )
            assert {getattr(paper, name) for name in names} == {0}


@pytest.mark.parametrize(
    ("implicit", "repeats", "given", "met"),
    [
        (True, 1e-4, None, ["last"]),
        (True, 2e-3, None, ["last", "last-distinct", "frequent"]),
        (True, 1e-4, "frequent", ["frequent"]),
        (True, 1e-4, "last,mix:2,frequent", ["last", "mix:2"]),
        (True, 1e-4, "", []),
        (False, 0.0, "last,frequent", ["last", "frequent"]),
        (False, 0.0, None, ["last", "hardest"]),
    ],
)
def test_rivals_that_keep_what_last_keeps_are_not_met_besides_it(implicit, repeats, given, met):
    flags = {"policy": "learned", **({} if given is None else {"baseline": given})}
    config = build_config(flags=flags, implicit_data=implicit)
    assert config.fitted(1000, 10, 500, implicit=implicit, repeats=repeats).baselines == met
    starts = given is None and implicit and repeats < 1e-3  # with the newest and the likeliest
    large = config.but(size=5).fitted(1000, 10, 500, implicit=implicit, repeats=repeats)
    assert large.baselines == [*met, *(["last-top:4"] if starts else [])]


@pytest.mark.parametrize(("repeats", "taken"), [(0.09, (0, 0.0)), (0.1, (1, 3e-2))])
def test_readers_in_order_decay_only_where_items_come_back(repeats, taken):
    for recommender in ("gru", "gru-separate", "sasrec"):
        config = build_config(flags={"recommender": recommender}, implicit_data=True)
        fitted = config.fitted(1000, 10, 500, implicit=True, repeats=repeats)
        assert (fitted.repeat_feature, fitted.weight_decay) == taken
        assert (fitted.recency_decay, fitted.separate_input) == (0, 0)


@pytest.mark.parametrize(
    ("settings", "repeats", "taken"),
    [
        ({}, 0.0009, (0, 1, 1)),
        ({}, 0.001, (0, 0, 1)),
        ({}, 0.1, (1, 0, 0)),
        ({"filter_sketch": 1}, 0.5, (0, 1, 1)),
        ({"repeat_feature": 1}, 0.0, (1, 0, 0)),
        ({"filter_sketch": 0, "cosine": 0}, 0.0, (0, 0, 0)),
        ({"cosine": 1}, 0.5, (1, 0, 1)),
        ({"loss": "softmax", "negatives": 9}, 0.0, (0, 1, 1)),
        ({"loss": "bpr-max"}, 0.0, (0, 1, 0)),
        ({"recommender": "dot"}, 0.0, (0, 1, 0)),
        ({"recommender": "dot"}, 0.001, (0, 0, 0)),
        ({"recommender": "dot"}, 0.5, (1, 0, 0)),
        ({"recommender": "dot", "negatives": 9}, 0.0, (0, 1, 0)),
        ({"recommender": "dot", "repeat_feature": 1}, 0.0, (1, 0, 0)),
        ({"recommender": "mlp"}, 0.0, (0, 1, 0)),
        ({"recommender": "mlp"}, 0.5, (0, 0, 0)),
        ({"recommender": "mine:Own"}, 0.0, (0, 1, 0)),
        ({"recommender": "mine:Own", "filter_sketch": 0}, 0.0, (0, 0, 0)),
        ({"recommender": "dot", "task": "explicit"}, 0.0, (0, 0, 0)),
    ],
)
def test_what_was_read_is_struck_out_where_nothing_comes_back(settings, repeats, taken):
    config = build_config(flags={"recommender": "gru", **settings}, implicit_data=True)
    implicit = config.implicit(explicit_data=False)
    fitted = config.fitted(1000, 10, 500, implicit=implicit, repeats=repeats)
    assert (fitted.repeat_feature, fitted.filter_sketch, fitted.cosine) == taken


def test_decay_falls_with_the_data_where_items_do_not_come_back():
    config = TrainConfig(weight_decay=-1.0)

    def decay(rows: int, items: int, repeats: float = 0.0) -> float:
        fitted = config.fitted(rows, 10, items, implicit=True, repeats=repeats)
        return fitted.weight_decay

    assert decay(276_000, 35_000) == pytest.approx(2e-4, rel=0.01)  # amazon-cds
    assert decay(100_000, 35_000) == decay(100_000, 1_000) == pytest.approx(5.5e-4)
    assert decay(100_000, 200) == pytest.approx(2e-4)
    assert decay(100_000, 1_000, repeats=0.5) == pytest.approx(1e-3)


def test_whole_numbers_are_numbers():
    config = TrainConfig(policy_lr=0, learning_rate=1, size=3)
    found = [(value, type(value)) for value in (config.policy_lr, config.learning_rate)]
    assert found == [(0.0, float), (1.0, float)]
    assert type(config.size) is int


def test_settings_that_are_neither_given_nor_left_open():
    for name in ("inner_lr", "weight_decay"):
        with pytest.raises(ConfigError, match=f"{name} is -0.5: -1, or at least 0"):
            TrainConfig(**{name: -0.5})
    for name in (
        "repeat_feature",
        "filter_sketch",
        "cosine",
        "recency_decay",
        "separate_input",
        "residual",
        "predicted_score",
    ):
        with pytest.raises(ConfigError, match=f"{name} is '2': choose one of -1, 0, 1"):
            TrainConfig(**{name: 2})
