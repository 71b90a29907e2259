import json

import pytest

FEW = ("--users", "4", "--steps", "3")
DIPS = ("--policy", "dips", "--recipe", "default", "--size", "2")


def test_a_run_of_dips_is_studied(command, trained):
    run = trained("explicit", *DIPS)
    found = command("gradients", run, *FEW, "--json")
    assert found.code == 0, found.err
    assert "3 of 3 steps" in found.err
    assert json.loads((run / "gradients.json").read_text()) == found.json
    assert (run / "gradients.png").read_bytes().startswith(b"\x89PNG")
    reported = found.json
    assert [reported[name] for name in ("policy", "size", "users", "steps")] == ["dips", 2, 4, 3]
    assert (reported["queue"], reported["tolerance"]) == (100, 1e-12)
    assert reported["entries"] == 64 * 2 * 128 + 128 + 128 * 128 + 128 + 64
    assert reported["paper_ml_1m"]["dips"]["preserved"] == 0.74
    for shares in reported["ours"].values():
        assert sum(shares[n] for n in ("preserved", "negated", "zeroed")) == pytest.approx(1.0)
    assert reported["ours"]["dips"]["zeroed"] < reported["ours"]["dips@1"]["zeroed"]
    assert [list(row) for row in reported["by_step"]] == [
        ["step", "users", "nonzero", "dips", "dips@1"]
    ] * 3


def test_the_table_shows_the_paper(command, trained):
    found = command("gradients", trained("explicit", *DIPS), *FEW)
    assert found.code == 0, found.err
    words = " ".join(found.out.split())
    for text in (
        "paper (ML-1M)",
        "74.00 %",
        "0.30 %",
        "82.00 %",
        "0.03 %",
        "1e-12",
        "gradients.png",
    ):
        assert text in words


def test_other_data_and_dips_at_1(command, trained, worlds):
    run = trained("implicit", "--policy", "dips@1", "--recipe", "default", "--every", "2")
    found = command(
        "gradients", run, worlds["implicit"], *FEW, "--queue", "1", "--longest", "9", "--json"
    )
    assert found.code == 0, found.err
    assert found.json["policy"] == "dips@1"
    assert found.json["ours"]["dips"] == found.json["ours"]["dips@1"]
    assert found.json["longest"] == 9


def test_the_seed_fixes_the_result(command, trained):
    run = trained("explicit", *DIPS)
    one, same, other = (command("gradients", run, *FEW, "--seed", s, "--json") for s in (1, 1, 2))
    assert one.json == same.json != other.json


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--policy", "last"), "the policy 'last' has no gradient to study: give a run of"),
        (("--policy", "learned", "--baselines", ""), "the policy 'learned' reads signals of the"),
    ],
)
def test_a_run_without_such_a_gradient_is_refused(command, trained, arguments, sentence):
    found = command("gradients", trained("explicit", *arguments), "--json")
    assert found.code == 2
    assert found.out == ""
    assert sentence in found.err
    assert len(found.err.splitlines()) == 1


def test_gradients_need_a_run(command, tmp_path):
    found = command("gradients", tmp_path / "nothing")
    assert found.code == 2
    assert "there is no such run directory" in found.err
