"""Settings that are left open are decided from the data, by a table of rules."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from dips.policy.registry import POLICIES, WITH_ARGUMENT
from dips.training.config import LEAVES, TrainConfig, leaf_fields
from dips.training.recipes import baseline_config, build_config
from dips.training.resolve import RULES, DataSummary, resolve

LASTING = {
    "periods", "negatives", "inner_loss", "user_lr", "user_batch", "update_interval", "device",
    "max_seconds", "max_users",
}  # fmt: skip
"""Leaves in which None has a meaning of its own: all, no limit, or the loss itself."""


def decide(
    rows: int = 1000,
    users: int = 10,
    items: int = 500,
    *,
    implicit: bool = False,
    repeats: float = 0.0,
    recipe: str | None = None,
    **flags: Any,
) -> TrainConfig:
    """Return resolved settings."""
    data = DataSummary(rows, users, items, explicit=not implicit, repeats=repeats)
    return resolve(build_config(recipe, flags=flags), data).config


def values(config: TrainConfig, *names: str) -> tuple[Any, ...]:
    return tuple(config[name] for name in names)


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("policy", ["last", "learned", "dips", "dips@1"])
def test_nothing_stays_open(policy: str, implicit: bool) -> None:
    config = decide(policy=policy, implicit=implicit)
    assert {name for name, value in config.items() if value is None} <= LASTING


def test_every_rule_is_for_an_open_setting() -> None:
    defaults = {leaf.name: leaf.default for leaf in leaf_fields()}
    for rule in RULES:
        assert rule.setting in LEAVES
        assert defaults[rule.setting] is None
        assert rule.reason


def test_given_settings_are_kept_and_decisions_have_reasons() -> None:
    data = DataSummary(1000, 10, 500, explicit=True)
    found = resolve(TrainConfig.of(dim=7), data)
    assert found.config.model.dim == 7
    names = [one.setting for one in found.decisions]
    assert "dim" not in names
    assert names[:2] == ["task", "loss"]
    assert all(one.reason and one.value == found.config[one.setting] for one in found.decisions)


@pytest.mark.parametrize(
    ("rows", "implicit", "expected"),
    [(100, False, (64, 256)), (14_400, False, (256, 256)), (600_000, False, (4096, 8192)),
     (10**8, False, (4096, 16384)), (600_000, True, (1024, 4096))],
)  # fmt: skip
def test_batch_sizes_follow_the_data(rows: int, implicit: bool, expected: tuple[int, int]) -> None:
    names = ("batch_size", "policy_batch_size")
    assert values(decide(rows, 10, 5, implicit=implicit), *names) == expected
    given = decide(rows, 10, 5, implicit=implicit, batch_size=7, policy_batch_size=9)
    assert values(given, *names) == (7, 9)


@pytest.mark.parametrize("policy", ["last", "learned"])
@pytest.mark.parametrize(
    ("rows", "epochs", "frozen"),
    [(90_000, 16, 4), (282_000, 8, 2), (590_000, 4, 1), (10**8, 4, 1)],
)
def test_clicks_train_for_about_2000_steps(
    rows: int, epochs: int, frozen: int, policy: str
) -> None:
    config = decide(rows, 10, 5, implicit=True, policy=policy)
    assert config.training.epochs == epochs
    if policy == "learned":
        assert config.policy_training.policy_freeze_epochs == frozen


@pytest.mark.parametrize(("rows", "epochs"), [(20_000, 11), (89_056, 5), (10**6, 4)])
def test_clicks_that_repeat_train_for_about_400_steps(rows: int, epochs: int) -> None:
    assert decide(rows, 10, 5, implicit=True, repeats=0.5).training.epochs == epochs


def test_a_policy_is_frozen_for_a_quarter_of_the_epochs() -> None:
    given = [1, 4, 11, 16, 40]
    found = [decide(policy="learned", epochs=epochs) for epochs in given]
    assert [one.policy_training.policy_freeze_epochs for one in found] == [1, 1, 2, 4, 4]


@pytest.mark.parametrize(
    ("settings", "user_batch"),
    [({}, None), ({"user_batches_per_epoch": 4}, 3),
     ({"user_batches_per_epoch": 4, "user_batch": 5}, 5)],
)  # fmt: skip
def test_user_batches(settings: dict[str, int], user_batch: int | None) -> None:
    assert decide(100, 10, 5, **settings).training.user_batch == user_batch


@pytest.mark.parametrize(
    ("rows", "implicit", "user_batch"),
    [(29_999, False, None), (30_000, False, 500), (600_000, False, 250), (11_999, True, None),
     (36_000, True, 250)],
)  # fmt: skip
def test_user_batches_are_as_small_as_the_data_allows(
    rows: int, implicit: bool, user_batch: int | None
) -> None:
    facts = DataSummary(rows, 1000, 50, explicit=not implicit)
    assert resolve(TrainConfig(), facts).config.training.user_batch == user_batch
    in_part = facts._replace(whole_histories=False)
    assert resolve(TrainConfig(), in_part).config.training.user_batch is None


FACTS: dict[str, dict[str, Any]] = {
    "ratings": {},
    "ratings, mlp": {"recommender": "mlp"},
    "cross entropy": {"loss": "cce"},
    "items": {"implicit": True},
    "items that repeat": {"implicit": True, "repeats": 0.5},
    "many items": {"implicit": True, "items": 60_000},
    "inner softmax": {"implicit": True, "inner_loss": "softmax"},
    "mlp": {"implicit": True, "recommender": "mlp"},
    "gru": {"implicit": True, "recommender": "gru"},
    "recipe paper": {"recipe": "paper"},
    "recipe quick": {"recipe": "quick", "implicit": True},
}


@pytest.mark.parametrize("rows", [1_000, 100_000, 10**7])
@pytest.mark.parametrize("facts", FACTS.values(), ids=FACTS)
def test_policies_differ_in_the_policy_alone(rows: int, facts: dict[str, Any]) -> None:
    names = [*(name for name in POLICIES if name not in WITH_ARGUMENT), "hardest", "influence"]
    names += [f"{name}:2" for name in WITH_ARGUMENT]
    found = {
        name: decide(rows, 1000, policy=name, size=4, **{"items": 500, **facts}) for name in names
    }
    reference = found["last"]
    for name, config in found.items():
        assert (config.model, config.training) == (reference.model, reference.training), name
        assert replace(config.sketch, policy="last") == reference.sketch, name


@pytest.mark.parametrize("facts", FACTS.values(), ids=FACTS)
@pytest.mark.parametrize("policy", ["learned", "dips"])
def test_a_run_and_its_baseline_differ_in_the_policy_alone(
    policy: str, facts: dict[str, Any]
) -> None:
    facts = {"items": 500, **facts}
    data = DataSummary(
        100_000, 1000, facts.pop("items"), explicit=not facts.pop("implicit", False),
        repeats=facts.pop("repeats", 0.0),
    )  # fmt: skip
    asked = build_config(facts.pop("recipe", None), flags={"policy": policy, "size": 4, **facts})
    own = resolve(asked, data).config
    baseline = resolve(baseline_config(asked, "last"), data).config
    assert (own.model, own.training) == (baseline.model, baseline.training)


@pytest.mark.parametrize(
    ("items", "given", "taken"),
    [(100, None, 1e-3), (200, None, 2e-3), (10**6, None, 3e-3), (100, 0.0, 0.0), (100, 0.5, 0.5)],
)
def test_weight_decay_falls_with_events_per_item(
    items: int, given: float | None, taken: float
) -> None:
    found = decide(10_000, 10, items, weight_decay=given)
    assert found.training.weight_decay == pytest.approx(taken)


@pytest.mark.parametrize(
    ("rows", "items", "taken"),
    [(1_000, 500, 0.05), (60_000, 1_682, 0.12), (600_000, 3_706, 0.25), (10**6, 99, 0.4)],
)
def test_the_inner_learning_rate_of_ratings_grows_with_events_per_item(
    rows: int, items: int, taken: float
) -> None:
    assert decide(rows, 10, items).model.inner_lr == taken
    assert decide(rows, 10, items, inner_lr=0.7).model.inner_lr == 0.7


def test_weight_decay_without_repeats_has_a_bound() -> None:
    def decay(rows: int, items: int, repeats: float = 0.0, inner_loss: str = "softmax") -> float:
        facts: dict[str, Any] = {"implicit": True, "repeats": repeats, "inner_loss": inner_loss}
        return decide(rows, 10, items, **facts).training.weight_decay

    assert decay(276_000, 35_000) == pytest.approx(2e-4, rel=0.01)  # amazon-cds
    assert decay(100_000, 35_000) == decay(100_000, 1_000) == pytest.approx(5.5e-4)
    assert decay(100_000, 200) == pytest.approx(2e-4)
    assert decay(100_000, 1_000, repeats=0.5) == pytest.approx(1e-3)
    linearised = {"inner_loss": "linearised"}
    assert decay(276_000, 35_000, **linearised) == pytest.approx(1.45e-3, rel=0.01)
    assert decay(100_000, 200, **linearised) == pytest.approx(4e-3)
    assert decay(10_000, 1_000, **linearised) == pytest.approx(2e-2)
    assert decay(10_000, 1_001, **linearised) == pytest.approx(5e-3)
    assert decay(100_000, 1_000, repeats=0.5, **linearised) == pytest.approx(1e-3)
    assert decay(100_000, 4_000, repeats=0.5, **linearised) == pytest.approx(1.2e-2)  # rare items


def test_weight_decay_of_other_implicit_losses() -> None:
    found = decide(100_000, 10, 35_000, implicit=True, loss="bpr")
    assert found.training.weight_decay == pytest.approx(5.5e-4)


@pytest.mark.parametrize(
    ("facts", "taken"),
    [
        ({}, "linearised"),
        ({"repeats": 0.09999}, "linearised"),
        ({"repeats": 0.1}, "linearised"),
        ({"negatives": 5}, "linearised"),
        ({"loss": "bpr"}, None),
        ({"recommender": "mlp"}, None),
        ({"recommender": "gru", "repeats": 0.5}, None),
        ({"implicit": False}, None),
        ({"inner_loss": "softmax"}, "softmax"),
        ({"inner_loss": "linearised", "repeats": 0.5}, "linearised"),
        ({"recipe": "paper"}, "softmax"),
        ({"recipe": "paper-128"}, "softmax"),
    ],
    ids=str,
)
def test_the_inner_loss_of_clicks_is_linearised(facts: dict[str, Any], taken: str | None) -> None:
    found = decide(**{"rows": 100_000, "items": 10_000, "implicit": True, **facts})
    assert found.model.inner_loss == taken


@pytest.mark.parametrize(
    ("facts", "taken"),
    [
        ({}, None),
        ({"items": 50_001}, 2048),
        ({"items": 50_001, "repeats": 0.5}, 2048),
        ({"items": 50_001, "negatives": 7}, 7),
        ({"items": 50_001, "inner_loss": "softmax"}, None),
        ({"items": 50_001, "recipe": "paper"}, None),
        ({"items": 50_001, "recommender": "gru"}, None),
        ({"items": 50_001, "loss": "bpr"}, 256),
        ({"items": 50_001, "implicit": False}, None),
    ],
    ids=str,
)
def test_the_softmax_is_sampled_with_many_items(facts: dict[str, Any], taken: int | None) -> None:
    found = decide(**{"rows": 100_000, "items": 50_000, "implicit": True, **facts})
    assert found.model.negatives == taken


def test_sampled_negatives_keep_the_features_of_a_linearised_inner_loop() -> None:
    names = ("recency_decay", "tie_embeddings", "predicted_score", "inner_lr")
    many = decide(items=60_000, implicit=True, policy="learned")
    assert values(many, *names) == (True, False, True, 0.5)
    repeats = decide(items=60_000, rows=10**6, implicit=True, repeats=0.2, policy="learned")
    assert values(repeats, "repeat_feature", *names) == (True, True, True, False, 0.5)
    plain = decide(implicit=True, policy="learned", inner_loss="softmax", negatives=9)
    assert values(plain, *names) == (False, True, False, 0.2)


MODEL = (
    "repeat_feature", "recency_decay", "tie_embeddings", "inner_lr", "weight_decay", "residual",
    "predicted_score",
)  # fmt: skip


@pytest.mark.parametrize(
    ("implicit", "repeats", "taken"),
    [(True, 0.0, (False, True, False, 0.5, 5e-3, False, True)),
     (True, 0.09, (False, True, False, 0.5, 5e-3, False, False)),
     (True, 0.1, (True, True, True, 0.5, 3e-2, False, False)),
     (False, 0.0, (False, False, True, 0.05, 3e-3, True, False))],
)  # fmt: skip
def test_the_model_follows_the_share_of_repeats(
    implicit: bool, repeats: float, taken: tuple[Any, ...]
) -> None:
    facts: dict[str, Any] = {"implicit": implicit, "repeats": repeats, "policy": "learned"}
    found = decide(**facts)
    assert values(found, *MODEL) == taken
    given = dict(zip(MODEL, (False, False, True, 0.7, 0.0, True, not taken[-1]), strict=True))
    assert values(decide(**facts, **given), *MODEL) == tuple(given.values())
    assert not decide(**facts, prior_penalty=0.1).policy_training.predicted_score
    for recipe in ("paper", "paper-128"):  # the paper's recommender has none of these parts
        for recommender in ("dot", "gru"):
            paper = decide(
                implicit=implicit, repeats=repeats, recipe=recipe, policy="dips",
                recommender=recommender,
            )  # fmt: skip
            names = ("repeat_feature", "filter_sketch", "cosine", "recency_decay")
            assert values(paper, *names, "predicted_score") == (False,) * 5
            assert paper.model.tie_embeddings


@pytest.mark.parametrize(
    ("implicit", "repeats", "given", "taken"),
    [
        (True, 1e-4, None, ("last",)),
        (True, 2e-3, None, ("last", "frequent")),
        (True, 1e-4, ("frequent",), ("frequent",)),
        (True, 1e-4, ("last", "mix:2", "frequent"), ("last", "mix:2")),
        (True, 1e-4, (), ()),
        (False, 0.0, ("last", "frequent"), ("last", "frequent")),
        (False, 0.0, None, ("last", "hardest:4")),
    ],
)
def test_baselines_that_keep_what_last_keeps_are_left_out(
    implicit: bool, repeats: float, given: tuple[str, ...] | None, taken: tuple[str, ...]
) -> None:
    facts: dict[str, Any] = {"implicit": implicit, "repeats": repeats, "policy": "learned"}
    assert decide(**facts, baselines=given).policy_training.baselines == taken
    from_scores = given is None and implicit and repeats < 1e-3
    large = decide(**facts, baselines=given, size=5).policy_training.baselines
    start = ("last", "hardest:5") if not implicit and given is None else taken
    assert large == (*start, *(("last-top:4",) if from_scores else ()))


@pytest.mark.parametrize(
    ("policy", "initial", "implicit", "taken"),
    [
        ("learned", None, False, 3e-3),
        ("learned", None, True, 1e-3),
        ("learned", "last", False, 3e-3),
        ("learned", "last", True, 3e-3),
        ("learned", "rule", False, 1e-3),
        ("learned", "pretrained", False, 1e-3),
        ("dips", None, False, 3e-3),
        ("dips", "rule", False, 3e-3),
    ],
)
def test_a_start_at_a_rule_has_a_small_policy_learning_rate(
    policy: str, initial: str | None, implicit: bool, taken: float
) -> None:
    found = decide(policy=policy, initial_policy=initial, implicit=implicit).policy_training
    assert found.policy_lr == taken
    several = policy == "learned" and not implicit
    assert found.initial_policy == (initial or ("best" if several else "rule"))


def test_without_residuals_both_starts_are_the_same() -> None:
    assert decide(policy="learned", residual=False).policy_training.initial_policy == "rule"


@pytest.mark.parametrize(("repeats", "taken"), [(0.09, (False, 0.0)), (0.1, (True, 3e-2))])
@pytest.mark.parametrize("recommender", ["gru", "sasrec"])
def test_sequential_models_decay_only_with_repeats(
    recommender: str, repeats: float, taken: tuple[bool, float]
) -> None:
    found = decide(implicit=True, repeats=repeats, recommender=recommender)
    assert values(found, "repeat_feature", "weight_decay") == taken
    assert values(found, "recency_decay", "tie_embeddings") == (False, True)


@pytest.mark.parametrize(
    ("settings", "repeats", "taken"),
    [
        ({}, 0.0009, (False, True, True)),
        ({}, 0.001, (False, False, True)),
        ({}, 0.1, (True, False, False)),
        ({"filter_sketch": True}, 0.5, (False, True, True)),
        ({"filter_seen": True}, 0.0, (False, False, True)),
        ({"filter_seen": True, "recommender": "dot"}, 0.0, (False, False, False)),
        ({"filter_seen": True}, 0.5, (True, False, False)),  # refused by `studies.checks`
        ({"repeat_feature": True}, 0.0, (True, False, False)),
        ({"filter_sketch": False, "cosine": False}, 0.0, (False, False, False)),
        ({"cosine": True}, 0.5, (True, False, True)),
        ({"loss": "softmax", "negatives": 9}, 0.0, (False, True, True)),
        ({"loss": "bpr-max"}, 0.0, (False, True, False)),
        ({"recommender": "dot"}, 0.0, (False, True, False)),
        ({"recommender": "dot"}, 0.001, (False, False, False)),
        ({"recommender": "dot"}, 0.5, (True, False, False)),
        ({"recommender": "dot", "negatives": 9}, 0.0, (False, True, False)),
        ({"recommender": "dot", "repeat_feature": True}, 0.0, (True, False, False)),
        ({"recommender": "mlp"}, 0.0, (False, True, False)),
        ({"recommender": "mlp"}, 0.5, (False, False, False)),
        ({"recommender": "mine:Own"}, 0.0, (False, True, False)),
        ({"recommender": "mine:Own", "filter_sketch": False}, 0.0, (False, False, False)),
        ({"recommender": "dot", "task": "explicit"}, 0.0, (False, False, False)),
    ],
)
def test_the_sketch_is_filtered_where_items_do_not_repeat(
    settings: dict[str, Any], repeats: float, taken: tuple[bool, bool, bool]
) -> None:
    found = decide(implicit=True, repeats=repeats, **{"recommender": "gru", **settings})
    assert values(found, "repeat_feature", "filter_sketch", "cosine") == taken


@pytest.mark.parametrize("policy", ["last", "learned"])
def test_filter_seen_decides_what_filter_sketch_decides(policy: str) -> None:
    """All but the filter itself; whatever the policy is."""
    names = ("tie_embeddings", "inner_lr", "weight_decay", "epochs", "recency_decay", "cosine")
    found = [
        decide(implicit=True, repeats=0.005, policy=policy, recommender="dot", **{name: True})
        for name in ("filter_sketch", "filter_seen")
    ]
    assert values(found[0], *names) == values(found[1], *names)
    assert [config.policy_training.predicted_score for config in found] == [True, True]
    assert [config.model.filter_sketch for config in found] == [True, False]
    neither = decide(implicit=True, repeats=0.005, policy=policy, recommender="dot")
    assert neither.policy_training.predicted_score is False


def test_policies_that_are_not_learned_never_revert() -> None:
    assert decide(policy="last").policy_training.revert_tolerance == math.inf
    assert decide(policy="learned").policy_training.revert_tolerance == 0.15
