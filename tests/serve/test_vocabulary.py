"""Item codes of a store, and the items of a model that they mean."""

from __future__ import annotations

import torch

from dips.data.interactions import Strings
from dips.serve.stores.registry import open_store
from dips.serve.vocabulary import ItemVocabulary, ModelItems


def model_items(known: str = "abc") -> ModelItems:
    vocabulary = ItemVocabulary(open_store("memory:"))
    vocabulary.add({name: code for code, name in enumerate(known)})
    return ModelItems(vocabulary, Strings.of("cxb"))


def test_new_items_are_appended():
    items = model_items()
    assert items.index.tolist() == [-1, 2, 0]
    longer = items.extended(["x", "new"])
    assert longer.tolist() == [-1, 2, 0, 1, -1]
    assert items.index.tolist() == [-1, 2, 0]
    assert items.extended([]) is items.index
    assert model_items("").extended(["x"]).tolist() == [1]


def test_a_map_that_was_not_committed_does_not_count():
    """After a failed commit other items get the same codes."""
    items = model_items()
    items.extended(["x", "new"])
    assert items.extended(["b"]).tolist() == [-1, 2, 0, 2]
    before = items.index = items.extended(["x"])
    items.index = items.extended(["b"] * 50)
    assert before.tolist() == [-1, 2, 0, 1]
    assert items.index.tolist() == [-1, 2, 0, 1, *[2] * 50]


def test_a_new_item_does_not_copy_the_map():
    items, places = model_items(), set[int]()
    for number in range(5000):
        items.index = items.extended([str(number)])
        places.add(items.index.untyped_storage().data_ptr())
    assert len(items.index) == 5003
    assert len(places) < 15
    assert torch.equal(items.index[3:], torch.full((5000,), -1))
