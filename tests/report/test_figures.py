"""Figures are PNG files that show their rows."""

import pytest
from matplotlib.image import imread

from dips.report.figures import gradient_shares, quality_by_size, training_curve

HISTORY = [{"epoch": e, "train_loss": 1 / e, "valid": -0.1 * e} for e in (1, 2, 3)]


def row(policy, size, every, mean, metric="rmse"):
    return {
        "policy": policy, "size": size, "every": every, "metric": metric, "mean": mean,
        "std": 0.01, "n": 3,
    }  # fmt: skip


def picture(path):
    """Return the pixels; fail on anything but a PNG."""
    assert path.read_bytes().startswith(b"\x89PNG")
    return imread(path)


def assert_drawn(pixels):
    height, width = pixels.shape[:2]
    assert min(height, width) > 300
    ink = pixels[..., :3].min(-1) < 0.9
    assert 0.005 < ink.mean() < 0.5
    assert len({tuple(pixel) for pixel in pixels[ink][:, :3].round(1).tolist()}) > 5  # colours


def test_training_curve(tmp_path):
    training_curve(HISTORY, tmp_path / "curve.png")
    assert_drawn(picture(tmp_path / "curve.png"))


def test_a_single_epoch_is_drawn_too(tmp_path):
    training_curve(HISTORY[:1], tmp_path / "curve.png")
    assert_drawn(picture(tmp_path / "curve.png"))


def test_the_curve_shows_the_history(tmp_path):
    training_curve(HISTORY, tmp_path / "a.png")
    training_curve(
        [{**line, "valid": -(line["valid"] ** 2)} for line in HISTORY], tmp_path / "b.png"
    )
    assert (picture(tmp_path / "a.png") != picture(tmp_path / "b.png")).any()


@pytest.mark.parametrize("policies", [1, 12])
def test_quality_by_size(policies, tmp_path):
    rows = [row(f"p{p}", size, 1, p + size) for p in range(policies) for size in (2, 4)]
    quality_by_size(rows, "rmse", tmp_path / "figure.png")
    assert_drawn(picture(tmp_path / "figure.png"))


def test_a_panel_for_each_period(tmp_path):
    one = [row("last", 2, 1, 1.0), row("last", 4, 1, 0.9)]
    quality_by_size(one, "rmse", tmp_path / "one.png")
    quality_by_size([*one, row("last", 4, 8, 0.8)], "rmse", tmp_path / "two.png")
    assert picture(tmp_path / "two.png").shape[1] == 2 * picture(tmp_path / "one.png").shape[1]


def test_other_metrics_are_left_out(tmp_path):
    rows = [row("last", 4, 1, 0.9)]
    quality_by_size(rows, "rmse", tmp_path / "a.png")
    quality_by_size([*rows, row("last", 8, 1, 0.2, "logloss")], "rmse", tmp_path / "b.png")
    assert (picture(tmp_path / "a.png") == picture(tmp_path / "b.png")).all()


def test_a_policy_may_lack_a_size(tmp_path):
    rows = [row("last", 2, 1, 1.0), row("last", 4, 1, 0.9), row("mix:2", 4, 1, 0.8)]
    quality_by_size(rows, "rmse", tmp_path / "figure.png")
    assert_drawn(picture(tmp_path / "figure.png"))


def test_gradient_shares(tmp_path):
    paper = {name: {"preserved": 0.5, "negated": 0.3, "zeroed": 0.2} for name in ("dips", "dips@1")}
    ours = {**paper, "dips": {"preserved": 1.0, "negated": 0.0, "zeroed": 0.0}}
    gradient_shares(ours, paper, tmp_path / "a.png")
    assert min(picture(tmp_path / "a.png").shape[:2]) > 300
    gradient_shares(paper, paper, tmp_path / "b.png")
    assert (picture(tmp_path / "a.png") != picture(tmp_path / "b.png")).any()


def test_published_results_are_marked(tmp_path):
    rows = [row("last", size, every, 1 / size) for size in (2, 4) for every in (1, 4)]
    quality_by_size(rows, "rmse", tmp_path / "a.png")
    quality_by_size(rows, "rmse", tmp_path / "b.png", marks=[row("last", 2, 4, 0.45)])
    quality_by_size(rows, "rmse", tmp_path / "c.png", marks=[row("other", 2, 4, 0.45)])
    plain, marked, other = (picture(tmp_path / f"{name}.png") for name in "abc")
    different = (plain != marked).any(-1)
    assert different.any()
    assert not different[:, : different.shape[1] // 2].any()  # every 4 is the right panel
    assert (plain == other).all()
