"""The grid of made worlds: who trains and tests, what a gain is, and that it runs."""

import json

import grid
import numpy as np
import pytest


def test_a_point_does_not_depend_on_other_points():
    """Its seed follows from where it stands in the grid."""
    point = (0.5, 0.1)
    place = grid.POINTS.index(point)
    made = grid.stream(users=12, durability=0.5, drift=0.1, implicit=False, seed=7 + place)
    alone = grid.worlds(7, 12, [point], implicit=False)[0]
    among = grid.worlds(7, 12, grid.POINTS, implicit=False)[place]
    for world in (alone, among):
        start, end = world.starts[0], world.starts[-1] + world.lengths[-1]
        assert np.array_equal(world.item[start:end], made.item)


@pytest.mark.parametrize(
    ("sign", "ours", "others", "wanted"),
    [(1.0, 0.9, [1.0, 1.2], 0.1), (-1.0, 0.22, [0.2, 0.1], 0.1), (-1.0, 0.1, [0.2], -0.5)],
)
def test_a_gain_is_relative_to_the_best(sign, ours, others, wanted):
    """Of losses the lowest is the best, of recall the highest."""
    found = grid.gain({"sign": sign, "test": ours}, [{"test": other} for other in others])
    assert found == pytest.approx(wanted)


@pytest.mark.parametrize("points", ["0.1/0.5", "0.1/0.5,0.5/0.5"])
def test_a_small_grid(points, tmp_path, monkeypatch, capsys):
    """There are three test users per training user; the exit code says whether all points pass."""
    seen = []
    real = grid.train_runs

    def run(jobs, **rest):
        seen.extend(tuple(part.users for part in parts) for parts, _ in jobs)
        return real(jobs, **rest)

    monkeypatch.setattr(grid, "train_runs", run)
    monkeypatch.setitem(grid.TRIALS, "explicit", [{"epochs": 1}])
    monkeypatch.setitem(grid.STATIC, "explicit", ["last", "reservoir", "mix:4"])
    out = tmp_path / "grid.json"
    asked = ["--seed", "3", "--users", "8", "--tasks", "explicit", "--sizes", "2", "--every", "4"]
    code = grid.main([*asked, "--points", points, "--json", str(out)])
    rows = json.loads(out.read_text())["rows"]
    assert [(row["durability"], row["drift"]) for row in rows] == [
        tuple(map(float, point.split("/"))) for point in points.split(",")
    ]
    assert set(seen) == {(8, 8, 24)}
    assert all(row["all"].keys() == {"last", "reservoir"} for row in rows)  # there is no mix:4 of 2
    missed = sum(
        row["gain"] < (0.03 if (row["durability"], row["drift"]) == (0.5, 0.5) else -0.01)
        for row in rows
    )
    assert code == int(missed > 0)
    assert f"{len(rows) - missed} of {len(rows)} points pass" in capsys.readouterr().out


def test_points_that_are_not_there_are_refused(capsys):
    with pytest.raises(SystemExit):
        grid.main(["--points", "0.5/0.5,0.3/0.3"])
    assert "--points 0.3/0.3: there are 0.1/0.1" in capsys.readouterr().err
