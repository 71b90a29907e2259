"""Settings: unknown names and bad values are refused; recipe < policy < file < flags."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from dips.credit.registry import CREDITS
from dips.errors import ConfigError
from dips.policy.registry import POLICIES
from dips.policy.settings import LEARNED, PRETRAINED
from dips.recommender.losses import SAMPLED_LOSSES
from dips.recommender.registry import RECOMMENDERS
from dips.recommender.settings import SEQUENTIAL
from dips.training.config import GROUPS, LEAVES, OWN_CLASS, TrainConfig, leaf_fields
from dips.training.estimators import ESTIMATORS
from dips.training.recipes import RECIPES, baseline_config, build_config


def test_every_setting_has_a_description() -> None:
    for leaf in leaf_fields():
        assert leaf.metadata["help"].endswith("."), leaf.name


def test_choices_are_the_names_that_exist() -> None:
    """They are written out in `config`, which imports no torch."""
    choices = {leaf.name: set(leaf.metadata["choices"]) for leaf in leaf_fields()}
    assert choices["estimator"] == set(ESTIMATORS)
    assert choices["credit"] == set(CREDITS) - {"replay"}
    assert choices["recommender"] == {*RECOMMENDERS, OWN_CLASS}
    assert choices["loss"] == {"mse", "bce", "cce", "softmax", *SAMPLED_LOSSES}
    assert set(SEQUENTIAL) < set(RECOMMENDERS)
    assert {LEARNED, PRETRAINED} < set(POLICIES)


def test_names_of_leaves_are_unique() -> None:
    assert len(leaf_fields()) == len(LEAVES)
    assert not set(LEAVES) & set(GROUPS)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"size": 0}, "size is 0: it must be at least 1"),
        ({"every": -1}, "every is -1: it must be at least 1"),
        ({"learning_rate": -0.1}, "learning_rate is -0.1: it must be at least 0"),
        ({"epochs": 0}, "epochs is 0: it must be at least 1"),
        ({"loss": "mae"}, "loss is 'mae': did you mean 'mse'? choose one of mse"),
        ({"selection": "best"}, "selection is 'best': choose one of greedy, sampled"),
        ({"recommender": "tree"}, "recommender is 'tree'"),
        ({"periods": (2, 0)}, "periods [2, 0]: each must be at least 1"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0: it must be at least 0"),
        ({"policy_weight_decay": math.nan}, "policy_weight_decay is nan: it must be at least 0"),
        ({"size": "four"}, "size is 'four': it must be a whole number"),
        ({"size": 2.5}, "size is 2.5: it must be a whole number"),
        ({"size": True}, "size is True: it must be a whole number"),
        ({"size": None}, "size is None: it must be a whole number"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast': it must be a number"),
        ({"policy": 3}, "policy is 3: it must be text"),
        ({"periods": 3}, "periods is 3: it must be a list of whole numbers"),
        ({"baselines": "last"}, "baselines is 'last': it must be a list of names"),
        ({"cosine": 1}, "cosine is 1: it must be true or false"),
    ],
)
def test_a_bad_value_is_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        TrainConfig.of(**changes)


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'sise': did you mean 'size'\? known are .*size"):
        TrainConfig.of(sise=3)


def test_schedule_of_the_sketch_settings() -> None:
    assert TrainConfig.of(every=4).sketch.schedule.periods == (4,)
    assert TrainConfig.of(every=4, periods=(3, 5)).sketch.schedule.periods == (3, 5)
    assert TrainConfig.of(periods=[3, 5]).sketch.periods == (3, 5)


def test_recipe_then_file_then_flags(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('size = 8\nepochs = 3\npolicy = "reservoir"\nperiods = [2, 3]\n')
    config = build_config("quick", file, {"epochs": 5, "dim": 4})
    assert config.training.batch_size == RECIPES["quick"]["batch_size"]  # recipe
    assert (config.sketch.size, config.sketch.policy) == (8, "reservoir")  # file
    assert config.sketch.periods == (2, 3)
    assert (config.training.epochs, config.model.dim) == (5, 4)  # flags
    assert config.training.learning_rate is None  # open


def test_a_file_may_have_a_table_for_each_branch(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[sketch]\nsize = 8\n[training]\nepochs = 3\n")
    config = build_config(file=file)
    assert (config.sketch.size, config.training.epochs) == (8, 3)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("size = 8\nepoch = 3", "unknown setting 'epoch'"),
        ("size = ", "not a TOML file"),
        ("size = 0", "size is 0"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        build_config(file=file)


def test_a_missing_file_and_an_unknown_recipe_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such configuration file"):
        build_config(file=tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="unknown recipe 'best': choose one of default, quick"):
        build_config("best")


def test_settings_round_trip_through_json() -> None:
    config = TrainConfig.of(periods=(3, 5), size=8, revert_tolerance=math.inf, baselines=("last",))
    text = json.dumps(config.to_dict(), allow_nan=False)
    assert TrainConfig.of(**json.loads(text)) == config


def test_every_and_periods_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="every and periods"):
        build_config(flags={"every": 2, "periods": (2, 3)})


def test_the_papers_training_is_a_recipe_that_is_asked_for() -> None:
    plain, paper = build_config(flags={"policy": "dips"}), build_config("paper")
    assert plain.training == TrainConfig().training
    assert (plain.policy_training.queue, plain.policy_training.credit) == (None, "identity")
    assert (paper.training.update_interval, paper.training.user_batch) == (1, 256)
    assert paper.training.learning_rate == RECIPES["paper"]["learning_rate"]
    short = build_config("paper", flags={"policy": "dips@1"})
    assert (short.training.update_interval, short.policy_training.queue) == (1, 1)
    assert build_config("paper", flags={"policy": "dips"}).policy_training.queue == 100
    assert build_config(flags={"policy": "dips", "queue": 7}).policy_training.queue == 7
    small = build_config("paper-128", flags={"policy": "dips"})
    assert (small.training.user_batch, small.policy_training.queue) == (128, 50)
    assert build_config("paper-128", flags={"policy": "dips@1"}).policy_training.queue == 1


@pytest.mark.parametrize("task", [None, "implicit"])
def test_settings_of_a_baseline_are_built_like_those_of_the_policy(task: str | None) -> None:
    flags = {"seed": 3, "dim": 8, "epochs": 5, "task": task, "user_batches_per_epoch": 2}
    ours = build_config(flags={"policy": "learned", **flags})
    assert baseline_config(ours, "last") == build_config(
        flags={"policy": "last", "baselines": (), **flags}
    )


def test_integers_are_accepted_as_floats() -> None:
    config = TrainConfig.of(policy_lr=0, learning_rate=1, size=3)
    found = [config.policy_training.policy_lr, config.training.learning_rate]
    assert [(value, type(value)) for value in found] == [(0.0, float), (1.0, float)]
    assert type(config.sketch.size) is int


def test_the_training_seed_is_the_seed_in_the_first_fold_and_repeat():
    first = TrainConfig.of(seed=3).training
    assert first.training_seed == 3
    derived = [
        TrainConfig.of(seed=seed, fold=fold, repeat=repeat).training.training_seed
        for seed in (0, 1, 2)
        for fold in range(5)
        for repeat in (0, 1, 2)
    ]
    assert len(set(derived)) == 45  # folds share no initialisation
    assert TrainConfig.of(seed=3, repeat=1) == TrainConfig.of(seed=3, repeat=1)
    assert all(0 <= seed < 2**31 for seed in derived)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"fold": 5}, "fold is 5: it must be at most 4"),
        ({"fold": -1}, "fold is -1: it must be at least 0"),
        ({"repeat": -1}, "repeat is -1: it must be at least 0"),
    ],
)
def test_folds_and_repeats_out_of_range_are_refused(settings, reason):
    with pytest.raises(ConfigError, match=reason):
        TrainConfig.of(**settings)
