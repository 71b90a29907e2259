"""Policy transfer on a small world: files, tables, what is trained, and going on."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import dips
from dips.data.interactions import Interactions
from dips.data.synthetic import stream
from dips.errors import ConfigError, RunError
from dips.studies import compare as compare_module
from dips.studies import transfer as transfer_study
from dips.studies.policy_transfer import TransferResult
from dips.studies.progress import StudyProgress
from dips.studies.run_directory import open_run, read_metrics

SMALL: dict[str, Any] = {
    "epochs": 1,
    "dim": 4,
    "batch_size": 256,
    "inner_steps": 2,
    "device": "cpu",
}
WHAT: dict[str, Any] = {"policies": ["hardest", "reservoir"], "sizes": [1, 2], "folds": 2}


@pytest.fixture(scope="module")
def data() -> Interactions:
    return stream(users=30, items=64, events=12, implicit=True)


@pytest.fixture(scope="module")
def whole(
    data: Interactions, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, TransferResult]:
    out = tmp_path_factory.mktemp("transfer") / "results"
    return out, dips.transfer(data, **WHAT, out=out, command="dips transfer ...", **SMALL)


@pytest.fixture
def worked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is trained and read."""
    done: list[str] = []
    run, read = compare_module.train_runs, transfer_study.score_transfer

    def trained(jobs: Any, **rest: Any) -> Any:
        done.extend(
            f"train {config.model.recommender} {config.sketch.policy}" for _, config in jobs
        )
        return run(jobs, **rest)

    def reading(model: Any, source_policy: Any, *rest: Any) -> Any:
        done.append(f"read {source_policy.name} {source_policy.size}")
        return read(model, source_policy, *rest)

    monkeypatch.setattr(compare_module, "train_runs", trained)
    monkeypatch.setattr(transfer_study, "score_transfer", reading)
    return done


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_files(whole: tuple[Path, TransferResult]) -> None:
    out, result = whole
    assert {path.name for path in out.iterdir()} == {
        "rows.csv", "summary.csv", "paired.csv", "ratios.csv", "figure.png", "transfer.json",
        "runs", "cells",
    }  # fmt: skip
    rows = _rows(out / "rows.csv")
    assert list(rows[0]) == [
        "policy", "size", "every", "fold", "repeat", "kept_policy", "recall@20", "mrr@20",
        "ndcg@20",
    ]  # fmt: skip
    assert len(rows) == 2 * (2 * 2 + 1)
    said = json.loads((out / "transfer.json").read_text())
    assert said == result.to_dict()
    assert said["kind"] == "transfer"
    assert said["command"] == "dips transfer ..."
    assert said["target_model"]["recommender"] == "gru"
    assert said["policies"]["hardest"]["recommender"] == "dot"
    assert "50 %" in said["paper"]["claim"]
    assert {row["policy"] for row in said["saved"]} == {"hardest"}


def test_only_policies_with_signals_or_parameters_are_trained(
    whole: tuple[Path, TransferResult],
) -> None:
    out, result = whole
    names = {path.name for path in (out / "runs").iterdir()}
    trained = {f"hardest-k{size}-t1-f{fold}-r0" for size in (1, 2) for fold in (0, 1)}
    assert names == trained | {"all-k1-t1-f0-r0", "all-k1-t1-f1-r0"}
    assert open_run(out / "runs" / "all-k1-t1-f0-r0").spec.kind == "gru"
    ceiling = [row for row in result.rows if row["policy"] == "all"]
    assert [(row["size"], row["fold"]) for row in ceiling] == [(2, 0), (2, 1)]
    for row in ceiling:
        assert row["test"] == read_metrics(out / "runs" / f"all-k1-t1-f{row['fold']}-r0")["test"]
    assert {row["policy"] for row in result.ratios} == {"hardest", "reservoir"}


@pytest.mark.filterwarnings("ignore:K = 40 is at least")
def test_a_large_sketch_equals_the_full_history(data: Interactions, tmp_path: Path) -> None:
    """With a large K, reading sketches equals reading full histories."""
    for target in ("gru", "sasrec"):
        result = dips.transfer(
            data, ["last"], [40], folds=1, recommender=target, out=tmp_path / target, **SMALL
        )
        last, everything = (row["test"] for row in result.rows)
        assert last == pytest.approx(everything)


def test_the_target_model_has_its_own_epochs(data: Interactions, tmp_path: Path) -> None:
    what: dict[str, Any] = {"policies": ["hardest"], "sizes": [1], "folds": 1}
    result = dips.transfer(data, **what, target_epochs=2, out=tmp_path / "out", **SMALL)
    assert result.about["target_model"]["epochs"] == 2
    assert result.about["policies"]["hardest"]["epochs"] == 1
    epochs = {
        place.name: read_metrics(place)["epochs"] for place in (tmp_path / "out/runs").iterdir()
    }
    assert epochs == {"all-k1-t1-f0-r0": 2, "hardest-k1-t1-f0-r0": 1}


def test_the_target_model_has_a_repeat_feature_by_default_on_repeats(
    data: Interactions, tmp_path: Path
) -> None:
    assert data.repeats > 0.1
    for given, taken in ((None, True), (False, False)):
        out = tmp_path / str(given)
        dips.transfer(data, ["last"], [1], folds=1, out=out, repeat_feature=given, **SMALL)
        assert open_run(out / "runs" / "all-k1-t1-f0-r0").spec.repeat_feature == taken


def test_settings_of_the_target_model_do_not_affect_source_policies(
    data: Interactions, tmp_path: Path
) -> None:
    alone = {"repeat_feature": False, "filter_sketch": True, "cosine": True}
    dips.transfer(data, ["hardest"], [1], folds=1, out=tmp_path, **alone, **SMALL)
    target, source_policy = (
        open_run(tmp_path / "runs" / name).spec
        for name in ("all-k1-t1-f0-r0", "hardest-k1-t1-f0-r0")
    )
    assert (target.filter_sketch, target.cosine) == (True, True)
    assert (source_policy.filter_sketch, source_policy.cosine) == (True, False)


def test_a_finished_study_is_not_computed_again(
    whole: tuple[Path, TransferResult], data: Interactions, worked: list[str]
) -> None:
    out, result = whole
    again = dips.transfer(data, **WHAT, out=out, command="dips transfer ...", **SMALL)
    assert worked == []
    assert again == result


def test_added_sizes_compute_only_their_cells(
    data: Interactions, tmp_path: Path, worked: list[str]
) -> None:
    dips.transfer(data, ["hardest", "last"], [1], folds=1, out=tmp_path / "out", **SMALL)
    worked.clear()
    dips.transfer(data, ["hardest", "last"], [1, 2], folds=1, out=tmp_path / "out", **SMALL)
    assert worked == ["train dot hardest", "read hardest 2", "read last 2"]


def test_an_interrupted_study_resumes(
    whole: tuple[Path, TransferResult], data: Interactions, tmp_path: Path, worked: list[str]
) -> None:
    def interrupt(update: StudyProgress) -> None:
        if update.phase == "reading sketches" and update.done == 3:
            raise KeyboardInterrupt

    out = tmp_path / "results"
    with pytest.raises(KeyboardInterrupt):
        dips.transfer(data, **WHAT, out=out, on_progress=interrupt, **SMALL)
    assert not (out / "rows.csv").exists()
    assert not list(out.rglob("*.part"))
    worked.clear()
    result = dips.transfer(data, **WHAT, out=out, **SMALL)
    assert [text for text in worked if text.startswith("train")] == []
    assert len(worked) == 5
    assert result.rows == whole[1].rows


def test_other_settings_are_refused(
    whole: tuple[Path, TransferResult], data: Interactions, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match=r"was made with other settings \(epochs\)"):
        dips.transfer(data, **WHAT, out=whole[0], **{**SMALL, "epochs": 2})
    with pytest.raises(RunError, match=r"was made with other settings \(recommender"):
        dips.transfer(data, **WHAT, out=whole[0], recommender="sasrec", **SMALL)
    out = tmp_path / "none"
    for policies, target, sentence in (
        (["all"], "gru", "'all' keeps no sketch"),
        (["last", "newest"], "gru", "newest"),
        (["last"], "gruu", "recommender is 'gruu'"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            dips.transfer(data, policies, [1], folds=1, recommender=target, out=out, **SMALL)
    with pytest.raises(ConfigError, match="--target-epochs is -1"):
        dips.transfer(data, ["last"], [1], folds=1, target_epochs=-1, out=out, **SMALL)
    assert not out.exists()


def test_data_with_ratings_needs_the_implicit_task(tmp_path: Path) -> None:
    rated = stream(users=20, items=64, events=8)
    with pytest.raises(ConfigError, match="add --task implicit"):
        dips.transfer(rated, ["last"], [1], folds=1, out=tmp_path / "out", **SMALL)
    assert not (tmp_path / "out").exists()
