import json

from tests.cli.conftest import FAST

WHAT = ("--policies", "last,reservoir", "--sizes", "2,4", "--folds", "2")


def test_a_comparison_becomes_a_page(command, worlds, trained, tmp_path):
    out = tmp_path / "results"
    typed = ("compare", worlds["explicit"], "--out", out, *WHAT, *FAST)
    assert command(*typed).code == 0
    run = trained("implicit", "--policy", "last")
    found = command("report", out, run, "--out", tmp_path / "report.html")
    assert found.code == 0, found.err
    assert found.out == f"the report is in {tmp_path / 'report.html'}: open it in a browser\n"
    html = (tmp_path / "report.html").read_text()
    assert "Results of 1 comparison and 1 single run." in html
    assert "dips " + " ".join(map(str, typed)) in html  # the exact command
    assert "bytes of a user&#x27;s record" in html
    assert ">48<" in html  # two rated entries: 24 bytes and 12 for each


def test_the_origin_is_written(command, worlds, trained):
    run = trained("explicit", "--policy", "last")
    origin = json.loads((run / "origin.json").read_text())
    assert origin["command"].startswith(f"dips train {worlds['explicit']} --out {run}")
    assert {"dips", "python", "torch", "cores", "threads", "cuda"} <= set(origin["environment"])


def test_bad_input(command, tmp_path):
    found = command("report", tmp_path / "nothing", "--out", tmp_path / "a.html")
    assert found.code == 2
    assert "there is no such directory" in found.err
    (tmp_path / "empty").mkdir()
    found = command("report", tmp_path / "empty", "--out", tmp_path / "a.html")
    assert found.code == 2
    assert "there are no results in it" in found.err
    found = command("report", tmp_path / "empty", "--out", tmp_path / "a.pdf")
    assert found.code == 2
    assert "the name must end in .html" in found.err
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
