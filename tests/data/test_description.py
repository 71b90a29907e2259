import pytest

from dips.data.description import describe
from dips.data.interactions import from_arrays
from dips.errors import DataError


def test_statistics_of_a_small_dataset():
    data = from_arrays([0, 0, 0, 1, 1], [0, 0, 1, 0, 2], [1, 2, 2, 5, 2], [7, 7, 8, 8, 8])
    facts = describe(data)
    assert (facts["users"], facts["items"], facts["interactions"]) == (2, 3, 5)
    assert facts["ratings"] == {"1": 1, "2": 3, "5": 1}
    assert facts["history_length"]["q0"] == 2
    assert facts["history_length"]["q100"] == 3
    assert facts["repeats"] == pytest.approx(1 / 5)
    assert facts["tied_neighbours"] == pytest.approx(2 / 3)
    assert facts["popularity"]["top_1_percent"] == pytest.approx(3 / 5)
    # mean absolute difference of (3, 1, 1) over twice the mean: (8 / 9) / (2 * 5 / 3)
    assert facts["popularity"]["gini"] == pytest.approx(8 / 30)
    assert facts["times"]
    assert not facts["titles"]


def test_a_part_counts_only_its_events():
    data = from_arrays([0, 0, 1], [0, 1, 1])
    facts = describe(data.select([1]))
    assert facts["interactions"] == 1
    assert facts["tied_neighbours"] is None
    assert facts["ratings"] is None
    assert facts["popularity"]["top_1_percent"] == 1.0


def test_data_without_events_is_refused():
    data = from_arrays([0, 0, 1], [0, 1, 1])
    with pytest.raises(DataError, match="there are no events to describe"):
        describe(data.select([]))


def test_many_ratings_are_binned():
    facts = describe(from_arrays([0] * 100, range(100), range(100)))
    assert len(facts["ratings"]) == 20
    assert sum(facts["ratings"].values()) == 100
    assert facts["ratings"]["0+"] == 5


def test_real_share_of_ties(real_data):
    from dips.data.catalog import open_data

    facts = describe(open_data(str(real_data / "ml-1m.parquet")))
    assert facts["tied_neighbours"] == pytest.approx(0.56, abs=0.01)
