"""Held-out worlds: one row per world and policy, and ratios to `last`."""

import csv

import held_out_worlds
import pytest


def test_ratios_are_means_over_worlds_of_policies_that_all_worlds_have():
    values = {("a", "last"): 2.0, ("b", "last"): 4.0, ("a", "x"): 1.0, ("b", "x"): 3.0}
    rows = [
        {"world": world, "policy": policy, "test": test}
        for (world, policy), test in {**values, ("a", "y"): 1.0}.items()
    ]
    assert held_out_worlds.ratios(rows) == {"last": 1.0, "x": pytest.approx(0.625)}


def test_every_world_has_its_own_size_and_period(tmp_path, monkeypatch, capsys):
    small = {"users": 30, "items": 64, "events": 12}
    family = held_out_worlds.family

    def small_worlds(kind, count, held_out):
        assert held_out
        return [
            type(world)(**{**vars(world), "options": {**world.options, **small}})
            for world in family(kind, count, held_out=True)
        ]

    monkeypatch.setattr(held_out_worlds, "family", small_worlds)
    monkeypatch.setattr(held_out_worlds, "RULES", {False: ("last", "last-top:4"), True: ("last",)})
    arguments = [str(tmp_path), "--kind", "items", "--worlds", "2", "--starts", "rule"]
    assert held_out_worlds.main(arguments) == 0
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    expected = family("items", 2, held_out=True)
    for index, world in enumerate(expected):
        own = [row for row in rows if row["world"] == f"items-{index}"]
        assert {row["policy"] for row in own} == {"last", "pretrained", "learned-rule"}
        assert {(row["size"], row["every"]) for row in own} == {(str(world.size), str(world.every))}
    assert "pretrained" in capsys.readouterr().out
