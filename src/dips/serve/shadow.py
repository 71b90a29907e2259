"""Evaluate another model in shadow: it decides at every refresh, and only differences count."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from dips.model.trained_model import TrainedModel
from dips.serve.engine import Engine
from dips.serve.vocabulary import ItemVocabulary, ModelItems
from dips.sketch.records import Sketch


@final
class Shadow:
    """Model in shadow: it sees the candidates of the live model, and changes nothing.

    Items that are new in a batch are unknown to it until the next batch.

    Args:
        trained: The model to evaluate.
        vocabulary: Items of the store.
    """

    def __init__(self, trained: TrainedModel, vocabulary: ItemVocabulary) -> None:
        self._engine, self._vocabulary = Engine(trained), vocabulary
        self._model_items = ModelItems(vocabulary, trained.item_ids)
        self.refreshes = self.different = 0
        self._kept = self._kept_by_both = 0
        self._age = {"live": 0, "shadow": 0}
        self._entries = {"live": 0, "shadow": 0}

    def compare(
        self, sketch: Sketch, arrivals: Sketch, seen: Tensor, user_keys: Tensor, refreshed: Sketch
    ) -> None:
        """Count how the live model's decisions differ from this model's.

        Args:
            sketch: Sketches before the refresh, [users, size].
            arrivals: Interactions since the last refresh, [users, n].
            seen: Number of interactions so far, [users].
            user_keys: Keys of the users for random priorities, [users].
            refreshed: Sketches after the live model's refresh, [users, size].
        """
        index = self._model_items.update(self._vocabulary)
        codes = int(max(sketch.item.max(), arrivals.item.max())) + 1
        index = torch.nn.functional.pad(index, (0, max(0, codes - len(index))), value=-1)
        other = self._engine.refresh(sketch, arrivals, seen, user_keys, index)
        same = refreshed.position[:, :, None] == other.position[:, None, :]
        shared = (same & refreshed.present[:, :, None]).any(2).sum(1)
        counts = torch.maximum(refreshed.present.sum(1), other.present.sum(1))
        self.refreshes += len(seen)
        self.different += int((shared < counts).sum())
        self._kept_by_both += int(shared.sum())
        self._kept += int(counts.sum())
        for name, kept in (("live", refreshed), ("shadow", other)):
            age = torch.where(kept.present, seen[:, None] - 1 - kept.position, 0)
            self._age[name] += int(age.sum())
            self._entries[name] += int(kept.present.sum())

    def report(self) -> dict[str, Any]:
        """Return the differences so far.

        Returns:
            refreshes: number of refreshes; different: number that ended with another sketch;
            kept_by_both: share of entries that both models keep; mean_age: mean age of entries in
            interactions, of the live model and of the shadow.
        """
        ages = {n: self._age[n] / max(1, self._entries[n]) for n in self._age}
        return {
            "refreshes": self.refreshes,
            "different": self.different,
            "kept_by_both": self._kept_by_both / max(1, self._kept),
            "mean_age": ages,
        }
