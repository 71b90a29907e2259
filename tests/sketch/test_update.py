"""The single state transition: joins, counts repeats, keeps fields together."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from dips.sketch.records import Candidates, Sketch, empty
from dips.sketch.selection import Greedy
from dips.sketch.update import decide, fill, join

KEY = torch.tensor([7])


def _arrivals(items: list[int], first: int) -> Sketch:
    """One user's interactions from position `first` on; all fields depend on the position."""
    place = torch.arange(first, first + len(items))[None]
    item = torch.tensor([items])
    return Sketch(place, item, place / 2.0, place * 10, torch.ones_like(place), place * 7)


def _newest(_: Sketch, candidates: Candidates) -> torch.Tensor:
    return candidates.position.double()


def _roll_out(items: list[int], size: int, periods: list[int]) -> Sketch:
    sketch, seen = empty(1, size), 0
    for period in periods:
        arrivals = _arrivals(items[seen : seen + period], seen)
        seen += period
        sketch, _ = decide(sketch, arrivals, torch.tensor([seen]), KEY, _newest, Greedy())
    return sketch


@given(st.lists(st.integers(0, 2), min_size=12, max_size=12), st.data())
def test_one_by_one_or_in_batches_repeats_are_the_same(
    items: list[int], data: st.DataObject
) -> None:
    """While nothing is dropped, repeats count the item's occurrences so far."""
    cuts = sorted(data.draw(st.sets(st.integers(1, 11))))
    periods = [end - start for start, end in zip([0, *cuts], [*cuts, 12], strict=True)]
    batched, single = _roll_out(items, 12, periods), _roll_out(items, 12, [1] * 12)
    for one, other in zip(batched, single, strict=True):
        assert torch.equal(one, other)
    expected = [items[: place + 1].count(items[place]) for place in range(12)]
    assert single.repeats.tolist() == [expected]


def test_dropped_items_start_counting_anew() -> None:
    sketch = _roll_out([5, 5, 8, 9, 5], size=2, periods=[1] * 5)
    assert sketch.item.tolist() == [[9, 5]]
    assert sketch.repeats.tolist() == [[1, 1]]
    remembered = _roll_out([5, 5, 8, 5], size=2, periods=[1] * 4)
    assert remembered.repeats.tolist() == [[1, 3]]


def test_empty_slots_count_nothing() -> None:
    """An empty slot holds item 0; an arriving item 0 is not its repeat."""
    candidates = join(empty(1, 3), _arrivals([0, 0], 0), torch.tensor([2]), KEY)
    assert candidates.repeats.tolist() == [[0, 0, 0, 1, 2]]
    gap = _arrivals([0, 4], 0)
    gap = gap._replace(position=torch.tensor([[-1, 1]]))
    candidates = join(empty(1, 1), gap, torch.tensor([2]), KEY)
    assert candidates.repeats.tolist() == [[0, 0, 1]]


def test_fields_stay_together() -> None:
    sketch = _roll_out([3, 1, 4, 1, 5], size=2, periods=[2, 3])
    assert sketch.position.tolist() == [[3, 4]]
    assert sketch.item.tolist() == [[1, 5]]
    assert sketch.rating.tolist() == [[1.5, 2.0]]
    assert sketch.time.tolist() == [[30, 40]]


def test_scores_are_those_of_the_kept_interactions() -> None:
    arrivals = _arrivals([1, 2, 3], 0)
    fresh, scores = decide(empty(1, 2), arrivals, torch.tensor([3]), KEY, _newest, Greedy())
    assert fresh.position.tolist() == [[1, 2]]
    assert scores.tolist() == [[1.0, 2.0]]


def test_a_policy_sees_the_sketch_before_and_age_and_elapsed_time() -> None:
    seen: list[tuple[Sketch, Candidates]] = []

    def look(sketch: Sketch, candidates: Candidates) -> torch.Tensor:
        seen.append((sketch, candidates))
        return _newest(sketch, candidates)

    sketch = _roll_out([1, 2], 3, [2])
    decide(sketch, _arrivals([7, 8], 2), torch.tensor([4]), KEY, look, Greedy())
    before, candidates = seen[0]
    assert before is sketch
    assert candidates.position.tolist() == [[0, 1, -1, 2, 3]]
    assert candidates.age[candidates.present].tolist() == [3, 2, 1, 0]
    assert candidates.elapsed[candidates.present].tolist() == [30, 20, 10, 0]


def test_filling_keeps_everything_in_order() -> None:
    """Empty slots between what was kept and what came are closed; nothing is scored."""
    sketch, arrivals = empty(1, 4), _arrivals([5, 6, 5], 0)
    once = fill(sketch, arrivals, torch.tensor([3]), KEY, 4)
    assert once.position.tolist() == [[0, 1, 2, -1]]
    assert once.repeats.tolist() == [[1, 1, 2, 0]]
    again = fill(once, _arrivals([5], 3), torch.tensor([4]), KEY, 5)
    assert again.position.tolist() == [[0, 1, 2, 3, -1]]
    assert again.repeats.tolist() == [[1, 1, 2, 3, 0]]


def test_a_smaller_size_may_be_chosen() -> None:
    sketch = _roll_out([1, 2, 3, 4], 4, [4])
    fresh, scores = decide(
        sketch, _arrivals([5], 4), torch.tensor([5]), KEY, _newest, Greedy(), size=2
    )
    assert fresh.position.tolist() == [[3, 4]]
    assert scores.tolist() == [[3.0, 4.0]]


def test_repeat_counts_inside_a_batch() -> None:
    place = torch.arange(4)[None]
    item, zero = torch.tensor([[1, 2, 1, 1]]), place * 0
    arrivals = Sketch(place, item, place.float(), place, zero + 1, zero)
    candidates = join(empty(1, 2), arrivals, torch.tensor([4]), KEY)
    assert candidates.repeats.tolist() == [[0, 0, 1, 1, 2, 3]]
