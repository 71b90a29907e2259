"""What a finished run is, and what a watcher is told of one on its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dips.data.splitting import Parts
from dips.errors import TrainingDiverged
from dips.evaluation.metrics import LOWER_IS_BETTER, headline
from dips.evaluation.progressive import Scores
from dips.evaluation.verdict import Entrant, of_run
from dips.model.trained_model import TrainedModel
from dips.policy.registry import learns
from dips.training.config import TrainConfig
from dips.training.rollouts import policy_of


@dataclass(eq=False, kw_only=True)
class RunResult:
    """A finished run."""

    config: TrainConfig
    trained: TrainedModel
    parts: Parts
    epochs: int
    best_epoch: int
    """Which epoch the bundle is from: the first with the best validation."""
    seconds: float
    history: list[dict[str, Any]]
    valid: dict[str, float]
    test: Scores | None
    peak_memory: int
    error: str = ""
    """Why there is no result: the run diverged."""
    learned: Entrant | None = None
    """What was learned, where rivals were met; None where it diverged."""
    baselines: list[Entrant] = field(default_factory=list)
    """Who was trained beside."""
    fitted: dict[str, Any] = field(default_factory=dict)
    """Settings that were left open, as the data decided them."""

    @property
    def baseline_kept(self) -> bool:
        """Whether a rival did better on validation, and is what stays."""
        return self.trained.policy_spec.name != self.config.policy

    def kept(self) -> str:
        """Which epoch the bundle is from, in words."""
        epoch = f"epoch {self.best_epoch}"
        if self.baseline_kept:
            baseline = self.trained.policy_spec.name
            return f"{epoch} of {baseline}, better on validation than what was learned,"
        return epoch + (" (before the policy began to learn)" if self._early else "")

    @property
    def _early(self) -> bool:
        return self.best_epoch <= self.config.policy_warmup_epochs and learns(
            policy_of(self.config)
        )

    def verdict(self) -> str:
        """Whether what was learned is worth it, in one line; empty where no rival was met."""
        return of_run(self.learned, self.baselines, self.config.size, taught=not self._early)

    def metrics(self) -> dict[str, Any]:
        """What metrics.json holds."""
        train = self.parts[0]
        return {
            "task": "explicit" if self.trained.explicit else "implicit",
            "policy": self.config.policy,
            "size": self.config.size,
            "every": self.config.every,
            "seed": self.config.seed,
            "data": train.name,
            "users": sum(part.users for part in self.parts),
            "epochs": self.epochs,
            "best_epoch": self.best_epoch,
            "kept_policy": self.trained.policy_spec.name,
            "valid": self.valid,
            "test": self.test.metrics if self.test else {},
            "train_seconds": round(self.seconds, 3),
            "interactions_per_second": round(len(train) * self.epochs / max(self.seconds, 1e-9), 1),
            "peak_memory_bytes": self.peak_memory,
            "fitted": self.fitted,
            **(
                {"baselines": {one.name: dict(one.valid) for one in self.baselines}}
                if self.baselines
                else {}
            ),
        }

    def meet(self, baseline: RunResult) -> None:
        """Note how a rival did, and let it take the place of a run that is worse."""
        self.seconds += baseline.seconds
        if baseline.error:
            return
        if not self.baselines and not self.error:
            self.learned = Entrant(self.config.policy, self.valid, self.test)
        self.baselines.append(Entrant(baseline.config.policy, baseline.valid, baseline.test))
        name = headline(baseline.valid)
        sign, better = (1, min) if name in LOWER_IS_BETTER else (-1, max)
        for line, other in zip(self.history, baseline.history, strict=False):
            line["baseline"] = better(other["valid"], line.get("baseline", other["valid"]))
        if self.error or sign * baseline.valid[name] < sign * self.valid[name]:
            self.trained, self.best_epoch, self.error = baseline.trained, baseline.best_epoch, ""
            self.valid, self.test = baseline.valid, baseline.test

    def raise_if_diverged(self) -> None:
        """Raise TrainingDiverged where there is no result."""
        if self.error:
            raise TrainingDiverged(self.error)


@dataclass(frozen=True)
class Moment:
    """What a watcher is told after each epoch of a stack."""

    runs: int
    epoch: int
    epochs: int
    seconds: float
    interactions_per_second: float
    train_loss: list[float]
    valid: list[float]
    baseline: bool = False
    """Whether these are runs that others are compared with."""


Watch = Callable[[Moment], None]
Done = Callable[[int, RunResult], None]
