"""`dips demo`, on data that train in seconds."""

import csv

import pytest

from dips.cli import demo
from dips.training.recipes import build_config


@pytest.fixture
def small(worlds, monkeypatch):
    """Let the demo run one epoch on small data; everything else is as users have it."""
    full = demo.settings_of
    monkeypatch.setattr(demo, "DATA", str(worlds["explicit"]))
    monkeypatch.setattr(
        demo, "settings_of", lambda policy: full(policy).but(epochs=1, dim=6, batch_size=256)
    )


def test_the_demo_answers_with_a_verdict_a_report_and_a_story(small, command, tmp_path):
    found = command("demo", "--out", tmp_path / "demo")
    assert found.code == 0, found.err
    assert "verdict: " in found.out
    assert "Equal quality: learned at 4 predicts as well as last at " in found.out
    with (tmp_path / "demo" / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["policy"], row["size"]) for row in rows} == {
        (policy, size)
        for policy in ("last", "reservoir", "hardest:8", "learned")
        for size in ("2", "4", "8")
    }
    for page in ("report.html", "story.html"):
        assert (tmp_path / "demo" / page).read_text().startswith("<!doctype html>")
        assert f"{tmp_path / 'demo'}/{page}" in found.out
    assert (tmp_path / "demo" / "figure.png").exists()
    assert "No command was recorded" not in (tmp_path / "demo" / "report.html").read_text()
    for line in found.out.split("What to try next:\n")[1].splitlines():
        assert line.startswith("  dips "), line


def test_learned_starts_at_the_shipped_parameters_and_may_not_become_a_rule():
    config = demo.settings_of("learned")
    assert config.policy_training.initial_policy == "pretrained"
    assert config.policy_training.baselines == ()
    assert demo.settings_of("last") == build_config("quick", flags={"policy": "last"})
