"""The pages' tables are what the files in results/ say."""

from pathlib import Path

import figure
import pytest

from dips.report.results import Comparison

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "docs" / "results.md", ROOT / "docs" / "ablations.md")


def rows(policy, seeds, size=4, every=1, shift=0.0):
    return [
        {"policy": policy, "size": size, "every": every, "seed": seed,
         "test_rmse": 0.9 + shift + 0.1 * seed}
        for seed in seeds
    ]  # fmt: skip


def comparison(*groups, summary=(), paired=()):
    flat = [row for group in groups for row in group]
    return Comparison("made", "ml-1m", flat, list(summary), list(paired), [], {})


def test_pages_are_up_to_date():
    """`make results` makes it so."""
    assert figure.main(["--check"], *PAGES) == 0


@pytest.mark.parametrize(
    ("wrong", "was", "now"),
    [
        ("results.md", "| `last` | 0.9344", "| `last` | 7.9344"),
        ("ablations.md", "| last | **+0", "| last | 7"),
    ],
)
def test_a_page_that_differs_is_detected_and_corrected(wrong, was, now, tmp_path, monkeypatch):
    texts = {page.name: page.read_text() for page in PAGES}
    for name, text in texts.items():
        (tmp_path / name).write_text(text.replace(was, now) if name == wrong else text)
    assert (tmp_path / wrong).read_text() != texts[wrong]
    pages = [tmp_path / page.name for page in PAGES]
    monkeypatch.setattr(figure, "FIGURE", tmp_path / "figure.png")
    assert figure.main(["--check"], *pages) == 1
    assert figure.main([], *pages) == 0
    assert {page.name: page.read_text() for page in pages} == texts
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_only_common_splits_count_and_the_first_folder_has_priority():
    first = comparison(rows("last", [0, 1]), rows("mix:1", [0, 1]))
    second = comparison(rows("last", [0, 1, 2], shift=5.0), rows("learned", [1, 2, 3, 0]))
    merged = figure.merged([first, second])
    assert [(row["policy"], row["seed"]) for row in merged] == [
        ("learned", 1), ("learned", 0), ("last", 0), ("last", 1), ("mix:1", 0), ("mix:1", 1),
    ]  # fmt: skip
    summary = figure.summary_of(merged)
    assert [row["mean"] for row in summary] == pytest.approx([0.95] * 3)
    assert [row["std"] for row in summary] == pytest.approx([0.0] * 3)  # splits differ alike


def test_the_best_is_bold_and_the_paper_in_brackets():
    merged = figure.merged([
        comparison(rows("last", [0, 1]), rows("dips", [0, 1], shift=0.01)),
        comparison(rows("learned", [0, 1], size=8)),
    ])  # fmt: skip
    assert figure.policy_table(figure.summary_of(merged)).splitlines() == [
        "| policy | K=4 | K=8 |",
        "|---|---|---|",
        "| `learned` | | **0.9500** |",
        "| `last` | **0.9500** | |",
        "| `dips` | 0.9600 (0.9418) | |",
    ]


def test_a_page_without_a_marker_is_refused():
    with pytest.raises(SystemExit, match="no marker"):
        figure.replace_blocks("nothing here", {"all": "text"})


def test_learned_against_last_has_both_intervals():
    summary = [
        {"policy": policy, "size": size, "every": 1, "metric": "rmse", "mean": mean, "std": 0.0,
         "n": 2}
        for policy, means in {"last": (0.95, 0.93), "learned": (0.94, 0.92)}.items()
        for size, mean in zip((4, 16), means, strict=True)
    ]  # fmt: skip
    pair = {"a": "learned", "b": "last", "size": 4, "every": 1, "metric": "rmse",
            "diff": -0.01, "low": -0.012, "high": -0.008}  # fmt: skip
    learned = [
        {**row, "test_rmse": row["test_rmse"] + 0.001 * row["seed"]}
        for row in rows("learned", [0, 1], shift=-0.0105)
    ]
    part = comparison(rows("last", [0, 1]), learned, summary=summary, paired=[pair])
    assert figure.versus(part).splitlines()[2:] == [
        "| `last` | 0.9500 |",
        "| `learned` | **0.9400** |",
        "| difference, interval over splits | 0.0100 ± 0.0064 |",  # 12.7 x 0.0005
        "| difference, interval over users (models fixed) | 0.0100 ± 0.0020 |",
        "| the paper's best | 0.9418 |",
        "| size of `last` with equal RMSE | 8.0 |",
    ]
