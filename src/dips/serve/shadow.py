"""Before a switch: another run is asked at every refresh, and what it would do is only counted."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from dips.model.trained_model import TrainedModel
from dips.serve.engine import Engine
from dips.serve.vocabulary import Numbering, Vocabulary
from dips.sketch.records import Sketch


@final
class Shadow:
    """A run that sees the same candidates as the one at work. Changes nothing.

    Items that are new in a batch are not known to it before the next one.
    """

    def __init__(self, trained: TrainedModel, vocabulary: Vocabulary) -> None:
        self._engine, self._vocabulary = Engine(trained), vocabulary
        self._numbering = Numbering(vocabulary, trained.item_ids)
        self.refreshes = self.different = 0
        self._kept = self._both = 0
        self._age = {"live": 0, "shadow": 0}
        self._entries = {"live": 0, "shadow": 0}

    def watch(
        self, sketch: Sketch, arrivals: Sketch, seen: Tensor, identity: Tensor, fresh: Sketch
    ) -> None:
        """Compare what was kept with what this run would have kept."""
        number = self._numbering.up_to(self._vocabulary)
        codes = int(max(sketch.item.max(), arrivals.item.max())) + 1
        number = torch.nn.functional.pad(number, (0, max(0, codes - len(number))), value=-1)
        other = self._engine.refreshed(sketch, arrivals, seen, identity, number)
        same = fresh.position[:, :, None] == other.position[:, None, :]
        shared = (same & fresh.present[:, :, None]).any(2).sum(1)
        counts = torch.maximum(fresh.present.sum(1), other.present.sum(1))
        self.refreshes += len(seen)
        self.different += int((shared < counts).sum())
        self._both += int(shared.sum())
        self._kept += int(counts.sum())
        for name, kept in (("live", fresh), ("shadow", other)):
            age = torch.where(kept.present, seen[:, None] - 1 - kept.position, 0)
            self._age[name] += int(age.sum())
            self._entries[name] += int(kept.present.sum())

    def report(self) -> dict[str, Any]:
        """How many refreshes would have ended otherwise, and how much is kept by both."""
        ages = {n: self._age[n] / max(1, self._entries[n]) for n in self._age}
        return {
            "refreshes": self.refreshes,
            "different": self.different,
            "kept_by_both": self._both / max(1, self._kept),
            "mean_age": ages,
        }
