"""Progress as lines: how far, how fast, and how long it still takes."""

from __future__ import annotations

import pytest

from dips.studies import progress_lines
from dips.studies.progress import EpochReport, StudyProgress, TrainingReport
from dips.studies.progress_lines import StudyLines, TrainingLines

COMMON = {"runs": 1, "epochs": 4, "total": 8, "seconds": 1.0, "interactions_per_second": 41_000.0}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch):
    """Replace the time by a list of one number."""
    now = [0.0]
    monkeypatch.setattr(progress_lines.time, "monotonic", lambda: now[0])
    return now


def test_lines_within_and_after_epochs(clock) -> None:
    lines: list[str] = []
    show = TrainingLines(lines.append)
    for second, done in ((1, 0.25), (3, 0.5), (7, 0.75)):
        clock[0] = second
        show(TrainingReport(**COMMON, epoch=1, done=done, role="start at last"))
    clock[0] = 8
    show(EpochReport(**COMMON, epoch=1, done=1.0, train_loss=[1.0], valid=[-0.5]))
    assert lines == [
        "epoch 1 of 4 (75 %): start at last, 41K interactions/s, 87.0 s left",
        "epoch 1 of 4: validation 0.5000, 41K interactions/s, 65.3 s left",
    ]


def test_fast_epochs_have_no_lines_in_python(clock) -> None:
    lines: list[str] = []
    show = TrainingLines(lines.append, every_epoch=False)
    for epoch in range(1, 5):
        clock[0] += 1
        show(EpochReport(**COMMON, epoch=epoch, done=epoch, train_loss=[1.0], valid=[0.5]))
    assert lines == []
    clock[0] += 2
    show(EpochReport(**COMMON, epoch=5, done=5, train_loss=[1.0], valid=[0.5]))
    assert len(lines) == 1


def test_lines_of_a_study(clock) -> None:
    lines: list[str] = []
    show = StudyLines(lines.append)
    for second, done in ((0, 0.0), (6, 1.5), (7, 2.0), (8, 6.0)):
        clock[0] = second
        show(StudyProgress("training", done, 6))
    assert lines == [
        "training: 2 of 6 epochs of runs, 18.0 s left",
        "training: 6 of 6 epochs of runs",
    ]
