"""Session models on a small world: files, gains, what they learn from, and going on."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dips
from dips.data.interactions import Interactions, from_arrays
from dips.data.synthetic import stream
from dips.errors import ConfigError, RunError
from dips.recommender.session import SessionGRU
from dips.recommender.spectral_init import spectral_vectors
from dips.studies import session as session_study
from dips.studies.checks import split
from dips.studies.policy_transfer import TransferResult
from dips.studies.progress import StudyProgress
from dips.training import checkpoint
from dips.training.config import TrainConfig

SMALL: dict[str, Any] = {
    "epochs": 2,
    "dim": 4,
    "batch_size": 256,
    "inner_steps": 2,
    "device": "cpu",
}
WHAT: dict[str, Any] = {"policies": ["reservoir", "hardest"], "sizes": [0, 2], "folds": 1}


@pytest.fixture(scope="module")
def data() -> Interactions:
    return stream(users=30, items=64, events=12, implicit=True)


@pytest.fixture(scope="module")
def whole(
    data: Interactions, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, TransferResult]:
    out = tmp_path_factory.mktemp("session") / "results"
    return out, dips.session(data, **WHAT, out=out, **SMALL)


def test_files(whole: tuple[Path, TransferResult]) -> None:
    out, result = whole
    assert {path.name for path in out.iterdir()} == {
        "rows.csv", "summary.csv", "paired.csv", "ratios.csv", "gains.csv", "figure.png",
        "session.json", "runs", "cells",
    }  # fmt: skip
    said = json.loads((out / "session.json").read_text())
    assert said == result.to_dict()
    assert (said["kind"], said["sizes"], said["every"]) == ("session", [0, 2], 4)
    assert [(row["policy"], row["size"]) for row in result.rows] == [
        ("none", 0), ("reservoir", 2), ("hardest", 2),
    ]  # fmt: skip
    assert {path.name for path in (out / "runs").iterdir()} == {"hardest-k2-t4-f0-r0"}
    assert not list(out.rglob(checkpoint.FILE))
    with (out / "gains.csv").open() as file:
        gains = list(csv.DictReader(file))
    means = {(row["policy"], row["metric"]): row["mean"] for row in result.summary}
    for row in gains:
        expected = means[row["policy"], row["metric"]] / means["none", row["metric"]] - 1
        assert float(row["gain"]) == pytest.approx(expected)


def test_a_finished_study_is_not_trained_again(
    whole: tuple[Path, TransferResult], data: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, result = whole
    monkeypatch.setattr(session_study, "score_sessions", None)
    assert dips.session(data, **WHAT, out=out, **SMALL) == result


def test_an_interrupted_session_model_resumes_exactly(
    whole: tuple[Path, TransferResult], data: Interactions, tmp_path: Path
) -> None:
    def interrupt(update: StudyProgress) -> None:
        if update.phase == "session models" and update.done == 3:  # in the middle of the second
            raise KeyboardInterrupt

    out = tmp_path / "results"
    with pytest.raises(KeyboardInterrupt):
        dips.session(data, **WHAT, out=out, on_progress=interrupt, **SMALL)
    assert (out / "cells" / "reservoir-k2-t4-f0-r0" / checkpoint.FILE).exists()
    assert not (out / "rows.csv").exists()
    reported: list[tuple[int, str]] = []
    result = dips.session(
        data,
        **WHAT,
        out=out,
        on_progress=lambda now: reported.append((now.done, now.phase)),
        **SMALL,
    )
    assert result.rows == whole[1].rows
    models = [done for done, stage in reported if stage == "session models"]
    assert models == [4, 5, 6]  # the first model is finished, and an epoch of the second


def test_a_checkpoint_of_other_settings_is_not_resumed(data: Interactions, tmp_path: Path) -> None:
    def interrupt(update: StudyProgress) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "results"
    what: dict[str, Any] = {"policies": ["last"], "sizes": [0, 1], "folds": 1}
    with pytest.raises(KeyboardInterrupt):
        dips.session(data, **what, out=out, on_progress=interrupt, **SMALL)
    other = {**SMALL, "learning_rate": 0.1}
    again = dips.session(data, **what, out=out, **other)
    fresh = dips.session(data, **what, out=tmp_path / "fresh", **other)
    assert again.rows == fresh.rows


def test_unsupported_sizes_and_splits_are_refused(
    whole: tuple[Path, TransferResult], data: Interactions, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match="was made with other settings"):
        dips.session(data, **WHAT, out=whole[0], **{**SMALL, "learning_rate": 0.5})
    out = tmp_path / "none"
    with pytest.raises(ConfigError, match="--sizes has no sketch"):
        dips.session(data, ["last"], [0], folds=1, out=out, **SMALL)
    with pytest.raises(ConfigError, match="full histories"):
        dips.session(data, ["last"], [2], folds=1, out=out, split="time", **SMALL)
    with pytest.raises(ConfigError, match="--target-epochs is -2"):
        dips.session(data, ["last"], [2], folds=1, out=out, target_epochs=-2, **SMALL)
    with pytest.raises(ConfigError, match="size is -1"):
        dips.session(data, ["last"], [-1], folds=1, out=out, **SMALL)
    assert not out.exists()
    out.write_text("in the way")
    with pytest.raises(RunError, match="cannot be written"):
        dips.session(data, ["last"], [2], folds=1, out=out, **SMALL)


def test_session_models_have_their_own_epochs(data: Interactions, tmp_path: Path) -> None:
    reported: list[StudyProgress] = []
    what: dict[str, Any] = {"policies": ["hardest"], "sizes": [2], "folds": 1}
    dips.session(
        data, **what, target_epochs=3, out=tmp_path / "out", on_progress=reported.append, **SMALL
    )
    totals = {update.phase: update.total for update in reported}
    assert totals == {"policies": 2, "session models": 3}


def test_session_models_filter_sketches_and_start_from_spectral_embeddings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two circles of users, and nothing comes back: what was met is no guess, nor is the rest."""
    made: list[SessionGRU] = []
    start = session_study.start

    def begun(jobs: Any, models: Any, *rest: Any) -> Any:
        made.extend(models)
        return start(jobs, models, *rest)

    monkeypatch.setattr(session_study, "start", begun)
    user, item = np.divmod(np.arange(640), 16)
    item = (item + 3 * user) % 32 + 32 * (user % 2)
    once = from_arrays(user, item, None, np.arange(640))
    found = {}
    for name, given in (("default", {}), ("plain", {"filter_sketch": False, "cosine": False})):
        some = {**SMALL, "learning_rate": 0.0, "dim": 16, **given}
        result = dips.session(once, ["hardest"], [4], folds=1, out=tmp_path / name, **some)
        found[name] = result.rows[0]["test"]["recall@20"]
    ours, plain = made
    assert (ours.has_repeat_feature, ours.cosine) == (True, True)
    assert (plain.has_repeat_feature, plain.cosine) == (False, False)
    train = split(once, TrainConfig.of(seed=0))[0]
    expected = spectral_vectors(train, 16, torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours.vectors.detach(), expected)
    assert found["default"] > found["plain"] + 0.1


def test_a_sketch_helps_where_the_session_has_no_information(tmp_path: Path) -> None:
    """Each user has one item that is the last of every session."""
    users, events = 40, 24
    rng = np.random.default_rng(0)
    own = rng.integers(0, 30, users)
    item = rng.integers(30, 60, (users, events))
    item[:, 3::4] = own[:, None]
    data = from_arrays(
        np.repeat(np.arange(users), events), item.reshape(-1), None, np.arange(users * events)
    )
    settings = {**SMALL, "epochs": 8, "dim": 16, "batch_size": 64, "learning_rate": 0.03}
    result = dips.session(data, ["last"], [0, 4], folds=1, out=tmp_path / "out", **settings)
    gain = next(row["gain"] for row in result.about["gains"] if row["metric"] == "mrr@20")
    assert gain > 0.3
