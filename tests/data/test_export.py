import numpy as np
import polars
import pytest

from dips.data.export import check_suffix, write_columns
from dips.errors import ConfigError, DataError

COLUMNS = {
    "user": np.array(["ä", "b,c", "b,c"], dtype=object),
    "t": np.array([3, 4, 5]),
    "score": np.array([0.5, -1.25, 2.0], dtype=np.float32),
}
ROWS = [("ä", 3, 0.5), ("b,c", 4, -1.25), ("b,c", 5, 2.0)]


@pytest.mark.parametrize(
    ("name", "read"), [("x.parquet", polars.read_parquet), ("x.csv", polars.read_csv)]
)
def test_tables_round_trip(name, read, tmp_path):
    path = tmp_path / "deep" / name
    write_columns(COLUMNS, path)
    frame = read(path)
    assert frame.columns == ["user", "t", "score"]
    assert frame.rows() == ROWS
    assert [file.name for file in path.parent.iterdir()] == [name]


def test_formulas_are_escaped_on_request(tmp_path):
    """Texts only, and only in CSV; other characters in front are left alone."""
    names = ["=1+1", "+1", "-1", "@f", "\tx", "\rx", " =1", "a=1", "'=1", ""]
    columns = {"item": np.array(names, dtype=object), "score": -np.arange(10.0)}
    write_columns(columns, tmp_path / "x.csv")
    assert polars.read_csv(tmp_path / "x.csv")["item"].to_list() == names
    write_columns(columns, tmp_path / "x.csv", escape_formulas=True)
    frame = polars.read_csv(tmp_path / "x.csv")
    assert frame["item"].to_list() == [*(f"'{name}" for name in names[:6]), *names[6:]]
    assert frame["score"].to_list() == columns["score"].tolist()
    write_columns(columns, tmp_path / "x.parquet", escape_formulas=True)
    assert polars.read_parquet(tmp_path / "x.parquet")["item"].to_list() == names


def test_an_unknown_suffix_is_refused_before_writing(tmp_path):
    path = tmp_path / "x.txt"
    with pytest.raises(ConfigError, match=r"x\.txt: the name must end in \.parquet or \.csv"):
        write_columns(COLUMNS, path)
    with pytest.raises(ConfigError):
        check_suffix(tmp_path / "parquet")
    assert not list(tmp_path.iterdir())


def test_an_older_table_survives_a_failed_write(tmp_path, monkeypatch):
    path = tmp_path / "x.csv"
    path.write_text("before")

    def fill_the_disk(self, file):
        file.write_text("half a li")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(polars.DataFrame, "write_csv", fill_the_disk)
    with pytest.raises(DataError, match=r"x\.csv: cannot be written .*No space left.*choose"):
        write_columns(COLUMNS, path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_path_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        write_columns(COLUMNS, tmp_path / "file" / "x.csv")
