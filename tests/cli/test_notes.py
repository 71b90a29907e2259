import json

import pytest

FAST = ("--epochs", 1, "--dim", 6, "--device", "cpu")
ROWS = [
    (f"u{user}", f"i{event}", event % 5, f"2020-01-0{event + 1}")
    for user in range(8)
    for event in range(6)
]


def table(folder, header, rows=ROWS):
    path = folder / "x.csv"
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def test_prepare_names_the_columns_and_what_is_not_read(command, tmp_path):
    path, out = table(tmp_path, "user,item,given_stars,created_at"), tmp_path / "x.safetensors"
    found = command("data", "prepare", path, "--out", out, "--json")
    assert found.code == 0
    assert json.loads(found.out) == found.json  # nothing else on standard output
    assert found.err.splitlines() == [
        f"dips: read {path}: user = user, item = item; no times: in the order of the file; "
        "not read: given_stars, created_at",
        f"dips: warning: {path}: column 'given_stars' looks like a rating and is not read; choose "
        "with --rating-col given_stars or --rating-col none (of dips data prepare)",
        f"dips: warning: {path}: column 'created_at' looks like a time and is not read; choose "
        "with --time-col created_at or --time-col none (of dips data prepare)",
    ]
    assert command("data", "describe", out).err == ""


def test_prepare_is_silent_about_columns_that_were_decided(command, tmp_path):
    path, out = table(tmp_path, "user,item,given_stars,created_at"), tmp_path / "x.safetensors"
    decided = ("--rating-col", "given_stars", "--time-col", "none")
    found = command("data", "prepare", path, "--out", out, *decided)
    assert found.err == (
        f"dips: read {path}: user = user, item = item, rating = given_stars; "
        "no times: in the order of the file; not read: created_at\n"
    )


def test_train_and_compare_print_notes_once(command, tmp_path):
    path = table(tmp_path, "user,item,rating,date")
    for name, arguments in {
        "train": ("--policy", "last", "--size", 9),
        "compare": ("--policies", "last,frequent", "--sizes", "4,9", "--folds", 1),
    }.items():
        found = command(name, path, "--out", tmp_path / name, *arguments, *FAST)
        assert found.code == 0
        kinds = ("dips: read ", "dips: warning: ")
        notes = [line for line in found.err.splitlines() if line.startswith(kinds)]
        assert notes == [
            f"dips: read {path}: user = user, item = item, rating = rating, time = date",
            "dips: warning: K = 9 is at least the length of 100 % of the histories: their sketches "
            "keep everything; choose a smaller K (half of the histories have at most 6 "
            "interactions)",
        ]


def test_equal_ratings_are_pointed_out(command, tmp_path):
    path = table(tmp_path, "user,item,rating,date", [(*row[:2], 5, row[3]) for row in ROWS])
    found = command("data", "describe", path)
    assert found.code == 0
    assert "dips: warning: x: all ratings are 5, so there is nothing to learn" in found.err


@pytest.mark.parametrize("rank", ["0", "1"])
def test_only_the_leading_process_prints(rank, command, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", rank)
    found = command("data", "describe", table(tmp_path, "user,item,rating,date"))
    assert found.err.count("dips: read") == (rank == "0")
