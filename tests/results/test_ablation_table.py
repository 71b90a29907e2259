"""The table of docs/ablations.md."""

from ablation_table import ablation_table

HEAD = "theme,variant,against,metric,valid,test,diff,low,high\n"


def test_a_column_for_each_file_and_a_row_for_each_variant(tmp_path):
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    first.write_text(
        HEAD
        + "default,learned,,rmse,0.8,0.71234,0,0,0\n"
        + "policy,last,learned,rmse,0.8,0.75,0.04,0.03,0.05\n"
        + "size,last with K = 8,K = 8,rmse,0.8,0.75,-0.01,-0.03,0.01\n"
    )
    second.write_text(
        HEAD
        + "default,learned,,rmse,0.8,0.9,0,0,0\n"
        + "policy,dips,learned,rmse,0.8,0.75,-0.0004,-0.0006,-0.0002\n"
        + "size,last with K = 8,K = 8,rmse,0.8,0.75,,,\n"
    )
    found = ablation_table({"one": first, "two": second, "none": tmp_path / "c.csv"})
    assert found.splitlines() == [
        "| theme | variant | one | two |",
        "|---|---|---|---|",
        "| default | learned | 0.7123 | 0.9000 |",
        "| policy | last | **+0.0400 ± 0.0100** | |",
        "| policy | dips | | **-0.0004 ± 0.0002** |",
        "| size | last with K = 8, against K = 8 | -0.0100 ± 0.0200 | |",
    ]
