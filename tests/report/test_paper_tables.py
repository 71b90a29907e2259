"""Results of the paper, copied from its tables by hand."""

import pytest

from dips.report.paper_tables import published_result


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
def test_values_of_the_tables(cell, expected):
    assert published_result(*cell) == expected


def test_learned_is_compared_with_dips():
    assert published_result("ml-1m", "rmse", 1, 4, "learned") == ("DiPS", 0.9418, 0.0018)


@pytest.mark.parametrize(
    "cell",
    [
        ("foursquare-nyc", "recall@20", 1, 4, "dips"),
        ("ml-1m", "recall@20", 1, 4, "dips"),
        ("ml-1m", "rmse", 1, 16, "dips"),
        ("ml-1m", "rmse", 1, 4, "last"),
    ],
)
def test_cells_that_the_paper_does_not_have(cell):
    assert published_result(*cell) is None


def test_every_cell_of_the_three_tables_is_there():
    sets = {"rmse": ("ml-1m", "ml-10m", "netflix"), "recall@20": ("amazon-books", "foursquare")}
    sets["mrr@20"] = sets["recall@20"]
    for metric, names in sets.items():
        for name in names:
            for every in (1, 4):
                for size in (2, 4, 8):
                    for policy in ("reservoir", "hardest", "influence", "dips@1", "dips"):
                        assert published_result(name, metric, every, size, policy) is not None
