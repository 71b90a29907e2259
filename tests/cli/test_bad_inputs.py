"""Bad files and arguments of a newcomer: each exits with 2 and one sentence, and leaves nothing."""

import gzip
import io
import zipfile

import polars as pl
import pytest

FAST = ("--policy", "last", "--epochs", 1, "--dim", 6, "--device", "cpu")
HEADER = "user,item,rating,time\n"
START = 1_000_000_000
ROWS = "".join(
    f"u{user},i{(user + event) % 9},{1 + user * event % 5},{START + event}\n"
    for user in range(8)
    for event in range(6)
)
GOOD = HEADER + ROWS
NEXT = GOOD.count("\n") + 1
"""Number of the line after `GOOD`."""


def workbook():
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    return made.getvalue()


def parquet(**columns):
    made = io.BytesIO()
    pl.DataFrame(columns).write_parquet(made)
    return made.getvalue()


FILES = {
    "Excel as csv": ("x.csv", workbook(), "this is an Excel workbook or a zip archive; save"),
    "Excel": ("x.xlsx", workbook(), "x.xlsx: a spreadsheet is not read; save it as CSV"),
    "UTF-16": ("x.csv", GOOD.encode("utf-16"), "this is text in UTF-16; save it as CSV in UTF-8"),
    "UTF-16 without mark": ("x.csv", GOOD.encode("utf-16-le"), "this is no text in UTF-8"),
    "Latin-1": ("x.csv", (GOOD + "u1,caf\xe9,3,4\n").encode("latin-1"), "not UTF-8 in 'u1,caf"),
    "decimal comma": ("x.csv", "user;item;rating\na;x;4,5\n", "write decimals with a point"),
    "columns of one name": (
        "x.csv",
        "user,item,rating,rating\na,x,1,2\n",
        "line 1: there are several columns 'rating'; rename all but one",
    ),
    "no header": ("x.csv", ROWS, "without a header give columns by number, as --user-col 1"),
    "other names": ("x.csv", "users,items\na,x\n", "did you mean 'users'? name it with --user-col"),
    "blank header": ("x.csv", "\n\n", "line 1: this line is blank; begin with the names"),
    "header only": ("x.csv", HEADER, "there are no interactions: the file has 1 line of header"),
    "Parquet without rows": (
        "x.parquet",
        parquet(user=[], item=[]),
        "there are no interactions: the table has no rows",
    ),
    "empty": ("x.csv", "", "x.csv: the file is empty"),
    "long row": (
        "x.csv",
        GOOD + "u1,i,1,3,4\n",
        f"line {NEXT}: 5 fields, and line 1 has 4; quote values that hold the separator",
    ),
    "long quoted row": ("x.csv", GOOD + '"u1","i,1",3,4,5\n', f"row {NEXT}: 5 fields, and line 1"),
    "short row": ("x.csv", GOOD + "u1,i1\n", f"line {NEXT}: too few fields in 'u1,i1', no time"),
    "open quote": ("x.csv", GOOD + 'u1,"i1,3,4\n' + ROWS, "close every quote"),
    "NaN": ("x.csv", GOOD + "u1,i1,NaN,4\n", f"line {NEXT}: rating nan is not a number"),
    "huge rating": ("x.csv", GOOD + "u1,i1,1e300,4\n", f"line {NEXT}: rating 1e+300 is too large"),
    "huge time": ("x.csv", GOOD + "u1,i1,3,1e30\n", f"line {NEXT}: time 1e+30 is not a time in"),
    "two units of time": (
        "x.csv",
        GOOD + f"u1,i1,3,{1000 * START}\n",
        "has another unit: there are both seconds and milliseconds",
    ),
    "cut gzip": ("x.csv.gz", gzip.compress(GOOD.encode())[:99], "the file is damaged or cut short"),
    "gzip as csv": ("x.csv", gzip.compress(GOOD.encode()), "let its name end in .csv.gz"),
    "csv as Parquet": ("x.parquet", GOOD, "is not a complete Parquet file"),
    "Parquet as csv": ("x.csv", parquet(user=[1], item=[1]), "let its name end in .parquet"),
    "lists": (
        "x.parquet",
        parquet(user=[1, 2], item=[[1], [2]]),
        "column 'item' is List(Int64); give text or numbers",
    ),
    "missing user": (
        "x.parquet",
        parquet(user=[1.0, float("nan")], item=[1, 2]),
        "row 2: user nan is missing",
    ),
    "unknown suffix": ("x.json", "[]", "the name of a table ends in .csv, .tsv or .parquet"),
    "one user": ("x.csv", HEADER + ROWS[: ROWS.index("u1,")], "there is a single user, 'u0'"),
    "one item": ("x.csv", "user,item\n" + "a,x\nb,x\nc,x\n" * 3, "there is a single item, 'x'"),
    "two users": ("x.csv", HEADER + ROWS[: ROWS.index("u2,")], "a split by users needs at least 3"),
}


def assert_refused(found, reason, folder, before):
    """Assert that a command exits with 2 and one sentence, below notes on the data."""
    *notes, sentence = found.err.splitlines()
    assert found.code == 2
    assert sentence.startswith("dips: ")
    assert reason in sentence
    assert all(line.startswith(("dips: read ", "dips: warning: ")) for line in notes)
    assert found.out == ""
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("case", FILES)
def test_bad_files(case, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, content, reason = FILES[case]
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    before = sorted(tmp_path.rglob("*"))
    found = command("train", name, "--out", "run", *FAST)
    assert_refused(found, reason, tmp_path, before)
    if "a split" not in reason and "single" not in reason:
        found = command("data", "prepare", name, "--out", "x.safetensors")
        assert_refused(found, reason, tmp_path, before)


ONE_RATING = "user,item,rating\n" + "".join(f"u{u},i{i},5\n" for u in range(8) for i in range(4))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["train", "ml-2m", "--out", "run"], "known name; did you mean 'ml-1m'? known are ml-100k"),
        (["train", "ML-1M", "--out", "run"], "did you mean 'ml-1m'?"),
        (["data", "describe", "god.csv"], "did you mean 'good.csv'?"),
        (["data", "fetch", "ml1m"], "nothing to fetch for 'ml1m': did you mean 'ml-1m'?"),
        (["data", "prepare", "good.csv", "--layout", "tabel"], "did you mean 'table'?"),
        (["data", "prepare", "good.csv", "--recipe", "implict"], "did you mean 'implicit'?"),
        (["data", "prepare", "good.csv", "--side", "tim"], "did you mean 'time'? see --side"),
        (
            ["data", "prepare", "planted", "--layout", "table"],
            "columns are known; leave --layout",
        ),
        (
            ["data", "prepare", "planted", "--user-col", "who"],
            "columns are known; leave --layout",
        ),
        (["data", "prepare", "planted", "--seed", "-1"], "seed is -1: "),
        (["data", "prepare", "good.csv", "--shuffle-ties", "-1"], "a seed must be at least 0"),
        (["train", "good.csv", "--seed", "-1", "--out", "run"], "seed is -1: it must be at least"),
        (["train", "good.csv", "--policy", "lst", "--out", "run"], "did you mean 'last'?"),
        (["train", "good.csv", "--recommender", "grru", "--out", "run"], "did you mean 'gru'?"),
        (["train", "good.csv", "--loss", "softmx", "--out", "run"], "did you mean 'softmax'?"),
        (["train", "good.csv", "--recipe", "papr", "--out", "run"], "did you mean 'paper'?"),
        (["train", "good.csv", "--config", "bad.toml", "--out", "run"], "did you mean 'training'?"),
        (["train", "good.csv", "--out", "good.csv/run"], "cannot be written"),
        (["train", "one.csv", "--loss", "bce", "--out", "run"], "loss 'bce' needs two different"),
        (["train", "one.csv", "--loss", "cce", "--out", "run"], "loss 'cce' needs two different"),
        (
            ["compare", "good.csv", "--policies", "last,hardst:8", "--out", "results"],
            "unknown policy 'hardst:8': did you mean 'hardest'?",
        ),
        (["compare", "good.csv", "--policies", "last", "--folds", 9, "--out", "r"], "folds is 9"),
        (["compare", "good.csv", "--policies", "last", "--sizes", 0, "--out", "r"], "size is 0"),
        (["paper", "planted", "--stages", "comparr", "--out", "paper"], "did you mean 'compare'?"),
    ],
)
def test_bad_arguments(arguments, reason, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {"good.csv": GOOD, "one.csv": ONE_RATING, "bad.toml": "[trainig]\nepochs = 1\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    before = sorted(tmp_path.rglob("*"))
    more = ["--out", "x.safetensors"] if "prepare" in arguments else []
    assert_refused(command(*arguments, *more), reason, tmp_path, before)


@pytest.mark.parametrize(
    "text", ["\ufeff" + GOOD, GOOD.replace(",", "\t"), GOOD.replace("\n", ",\n")]
)
def test_odd_files_that_can_be_read(text, command, tmp_path):
    (tmp_path / "x.csv").write_text(text)
    described = command("data", "describe", tmp_path / "x.csv", "--json")
    assert (described.code, described.json["interactions"]) == (0, 48)
