"""`dips transfer` and `dips session` from the shell."""

import pytest

FAST = ("--epochs", 1, "--dim", 4, "--batch-size", 256, "--inner-steps", 2, "--device", "cpu")
FEW = ("--max-users", 20, "--folds", 1)


@pytest.mark.parametrize("target", ["gru", "sasrec"])
def test_transfer(target, command, worlds, tmp_path):
    out = tmp_path / "out"
    arguments = (
        "transfer", worlds["implicit"], "--out", out, "--policies", "last,reservoir",
        "--sizes", "1,2", "--recommender", target, *FEW, *FAST,
    )  # fmt: skip
    found = command(*arguments, "--json")
    assert found.code == 0, found.err
    assert found.json["kind"] == "transfer"
    assert [row["policy"] for row in found.json["rows"]] == ["last", "last", *["reservoir"] * 2,
                                                            "all"]  # fmt: skip
    assert found.json["command"].startswith("dips transfer ")
    assert (out / "figure.png").stat().st_size > 1000
    again = command(*arguments)
    assert again.code == 0, again.err
    text = " ".join(again.out.split())
    assert "at best last at" in text or "last is never as good as reservoir" in text
    assert "the paper: DiPS needs up to 50 % fewer" in text
    assert f"target model {target}" in text


def test_results_of_another_kind_are_not_overwritten(command, worlds, tmp_path):
    calls = {
        "compare": ("--sizes", "2"), "transfer": ("--sizes", "1"), "session": ("--sizes", "0,2"),
    }  # fmt: skip

    def call(kind, out):
        policies = ("--policies", "last,reservoir")
        return command(kind, worlds["implicit"], "--out", out, *policies, *calls[kind], *FEW, *FAST)

    for kind in calls:
        assert call(kind, tmp_path / kind).code == 0
    for kind in calls:
        out = tmp_path / kind
        before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
        for other in calls.keys() - {kind}:
            refused = call(other, out)
            assert refused.code == 2
            named = "comparison" if kind == "compare" else kind
            reported = " ".join(refused.err.split())
            assert f"results of another kind ({named}): give --out another directory" in reported
        assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
        assert call(kind, out).code == 0  # results of the same kind are resumed


def test_session(command, worlds, tmp_path):
    out = tmp_path / "out"
    arguments = (
        "session", worlds["implicit"], "--out", out, "--policies", "last,reservoir",
        "--sizes", "0,2", *FEW, *FAST,
    )  # fmt: skip
    found = command(*arguments, "--json")
    assert found.code == 0, found.err
    assert [row["size"] for row in found.json["rows"]] == [0, 2, 2]
    again = command(*arguments)
    assert again.code == 0, again.err
    text = " ".join(again.out.split())
    assert "last at 2 gains" in text
    assert "more than 20 % better" in text


@pytest.mark.parametrize("name", ["transfer", "session"])
def test_a_kept_baseline_is_printed(name, command, worlds, tmp_path):
    found = command(
        name, worlds["implicit"], "--out", tmp_path / "out", "--policies", "learned", "--sizes",
        2, "--baselines", "frequent", "--policy-warmup-epochs", 9, "--learning-rate", 0.05,
        *FEW, *FAST,
        "--json",
    )  # fmt: skip
    assert found.code == 0, found.err
    (row,) = [row for row in found.json["rows"] if row["policy"] == "learned"]
    assert row["kept_policy"] in ("learned", "frequent")
    shown = command(
        name, worlds["implicit"], "--out", tmp_path / "out", "--policies", "learned", "--sizes",
        2, "--baselines", "frequent", "--policy-warmup-epochs", 9, "--learning-rate", 0.05,
        *FEW, *FAST,
    )  # fmt: skip
    said = "frequent chose, better on validation than what was learned" in shown.out
    assert said == (row["kept_policy"] == "frequent")
    assert all(r["kept_policy"] == "all" for r in found.json["rows"] if r["policy"] == "all")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("transfer", "explicit"), "add --task implicit"),
        (("transfer", "implicit", "--policies", "last,last"), "give each policy once"),
        (("transfer", "implicit", "--policies", "all"), "'all' keeps no sketch"),
        (("transfer", "implicit", "--sizes", "0,1"), "size is 0: it must be at least 1"),
        (
            ("transfer", "implicit", "--recommender", "dot", "--policies", "last"),
            "is not sequential",
        ),
        (("session", "implicit", "--sizes", "0"), "has no sketch"),
        (("session", "explicit"), "add --task implicit"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_unsupported_settings_are_refused(arguments, sentence, command, worlds, tmp_path):
    name, world, *rest = arguments
    found = command(name, worlds[world], "--out", tmp_path / "out", *rest, *FEW, *FAST)
    assert found.code == 2
    assert sentence in " ".join(found.err.split())
    assert not (tmp_path / "out").exists()
