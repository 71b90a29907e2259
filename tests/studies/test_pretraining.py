"""The shipped policy: made from synthetic worlds alone, loaded by `learned` and `pretrained`."""

import json

import pytest
import torch

from dips.data.side_information import SideInformation
from dips.data.synthetic import stream
from dips.data.synthetic.family import KINDS, family
from dips.errors import ConfigError
from dips.kernels.layout import FEATURES
from dips.policy import pretrained
from dips.policy.pretrained import (
    SHIPPED,
    SIGNALS,
    load_pretrained,
    pretrained_origin,
    pretrained_parameters,
    save_pretrained,
)
from dips.policy.registry import make_policy
from dips.studies import pretraining
from dips.studies.checks import split
from dips.studies.run import train_runs
from dips.training.config import TrainConfig

DATA = {
    "residual": stream(users=60, items=64, events=14),
    "predicted_score": stream(users=60, items=200, events=14, implicit=True, repeats=False),
    "none": stream(users=60, items=64, events=14, implicit=True),
}


def run(signal, policy, **settings):
    config = TrainConfig.of(**{
        "policy": policy, "size": 5, "epochs": 3, "dim": 6, "device": "cpu", "baselines": (),
        **settings,
    })  # fmt: skip
    parts = split(DATA[signal], config)
    return train_runs([(parts, config)])[0]


@pytest.mark.parametrize(("kind", "signal"), [*zip(KINDS, SIGNALS, strict=True)])
def test_pre_training_starts_at_a_rule_and_moves_it(kind, signal, monkeypatch):
    small = {"users": 40, "items": 64, "events": 14}
    monkeypatch.setattr(
        pretraining, "family",
        lambda kind, count, seed: [
            type(world)(**{**vars(world), "options": {**world.options, **small}, "size": size})
            for world, size in zip(family(kind, count, seed=seed), (2, 6), strict=True)
        ],
    )  # fmt: skip
    seen = []
    found, parameters = pretraining.pretrain(
        kind, worlds=2, epochs=2, cycles=2, on_epoch=lambda *line: seen.append(line)
    )
    assert found == signal
    assert [line[:2] for line in seen] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    shipped = pretrained_parameters(signal)
    assert {name: value.shape for name, value in parameters.items()} == {
        name: value.shape for name, value in shipped.items()
    }
    start = make_policy(
        "learned", size=8, initial="rule", residual=signal == "residual",
        predicted_score=signal == "predicted_score", repeat_feature=signal == "none",
    )  # fmt: skip
    moved = [
        not torch.equal(parameters[name], value.data) for name, value in start.named_parameters()
    ]
    assert all(moved)
    far = max(
        float((parameters[name] - value.data).abs().max())
        for name, value in start.named_parameters()
    )
    assert far < 0.5  # two cycles of two epochs do not leave the rule far behind


def test_the_file_is_small_and_says_how_it_was_made():
    assert SHIPPED.stat().st_size < 1_000_000
    for signal in SIGNALS:
        origin = pretrained_origin()[signal]
        assert origin.keys() == {"command", "worlds", "epochs", "cycles", "seed"}
        assert origin["worlds"] >= 20
        assert pretrained_parameters(signal)["first.weight"].shape == (64, len(FEATURES))


@pytest.mark.parametrize("signal", SIGNALS)
def test_pretrained_is_not_trained_and_says_so(signal):
    found = run(signal, "pretrained", baselines=("last",))
    policy = found.own.trained.policy
    for name, value in pretrained_parameters(signal).items():
        assert torch.equal(dict(policy.named_parameters())[name].cpu(), value), name
    if not found.baseline_kept:
        assert found.verdict.kept == "pretrained"
    assert "initial" not in found.verdict.kept
    json.dumps(found.metrics())


@pytest.mark.parametrize("signal", SIGNALS)
def test_learned_starts_from_the_shipped_parameters(signal):
    frozen = run(signal, "learned", initial_policy="pretrained", policy_lr=0.0)
    pretrained = run(signal, "pretrained")
    assert frozen.valid == pretrained.valid
    assert frozen.own.is_initial
    assert not pretrained.own.is_initial
    other = run(signal, "learned", initial_policy="last", policy_lr=0.0)
    found = other.own.trained.policy.state_dict()
    same = [torch.equal(value, found[n]) for n, value in pretrained_parameters(signal).items()]
    assert not any(same)


def test_side_information_starts_without_effect():
    data = DATA["residual"]
    side = SideInformation.of(data, ("categories", "time"), timed=True)
    narrow = make_policy("learned", size=4, initial="pretrained")
    wide = make_policy("learned", size=4, initial="pretrained", items=data.items, side=side)
    features = len(FEATURES)
    assert wide.first.weight.shape[1] > features
    assert torch.equal(wide.first.weight[:, :features], narrow.first.weight)
    assert not wide.first.weight[:, features:].any()
    assert not wide.direct[features:].any()


def test_parameters_that_do_not_fit_are_refused(monkeypatch):
    network = make_policy("learned", size=4, initial="rule")
    for found in ({}, {"unknown": torch.ones(2)}):
        monkeypatch.setattr(pretrained, "pretrained_parameters", lambda signal, found=found: found)
        with pytest.raises(ConfigError, match="make them with 'make pretrain'"):
            load_pretrained(network, "residual")


def test_a_file_can_be_written_and_read(tmp_path):
    parameters = {"none": {"a": torch.arange(3.0)}, "residual": {"a": torch.ones(2, 2)}}
    save_pretrained(parameters, {"seed": 7}, tmp_path / "file")
    assert pretrained_origin(tmp_path / "file") == {"seed": 7}
    assert pretrained_parameters("none", tmp_path / "file")["a"].tolist() == [0, 1, 2]
    assert pretrained_parameters("predicted_score", tmp_path / "file") == {}
