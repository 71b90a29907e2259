"""The paper's figures, against its tables by eye."""

import pytest

from dips.report.paper import paper_figure


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (("ml-1m", "rmse", 1, 4, "dips"), ("DiPS", 0.9418, 0.0018)),
        (("ml-1m", "rmse", 4, 8, "dips@1"), ("DiPS@1", 0.9418, 0.002)),
        (("ml-10m", "rmse", 4, 2, "influence"), ("Influence", 0.9127, 0.0013)),
        (("netflix", "rmse", 1, 2, "reservoir"), ("Random", 0.9898, 0.0006)),
        (("amazon-books", "recall@20", 1, 2, "dips@1"), ("DiPS@1", 0.1244, 0.0017)),
        (("amazon-books", "mrr@20", 4, 8, "hardest"), ("Hardest", 0.0149, 0.0001)),
        (("foursquare", "recall@20", 4, 4, "dips"), ("DiPS", 0.1339, 0.0001)),
        (("foursquare", "mrr@20", 1, 8, "reservoir"), ("Random", 0.0397, 0.0001)),
    ],
)
def test_figures(cell, expected):
    assert paper_figure(*cell) == expected


def test_learned_is_held_against_dips():
    assert paper_figure("ml-1m", "rmse", 1, 4, "learned") == ("DiPS", 0.9418, 0.0018)


@pytest.mark.parametrize(
    "cell",
    [
        ("foursquare-nyc", "recall@20", 1, 4, "dips"),
        ("ml-1m", "recall@20", 1, 4, "dips"),
        ("ml-1m", "rmse", 1, 16, "dips"),
        ("ml-1m", "rmse", 1, 4, "last"),
    ],
)
def test_where_the_paper_is_silent(cell):
    assert paper_figure(*cell) is None


def test_every_cell_of_the_three_tables_is_there():
    sets = {"rmse": ("ml-1m", "ml-10m", "netflix"), "recall@20": ("amazon-books", "foursquare")}
    sets["mrr@20"] = sets["recall@20"]
    for metric, names in sets.items():
        for name in names:
            for every in (1, 4):
                for size in (2, 4, 8):
                    for policy in ("reservoir", "hardest", "influence", "dips@1", "dips"):
                        assert paper_figure(name, metric, every, size, policy) is not None
