"""The result of one training run: trained model, scores, history and baselines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dips.data.splitting import Parts
from dips.errors import TrainingDiverged
from dips.evaluation.metrics import LOWER_IS_BETTER, primary_metric
from dips.evaluation.progressive import Scores
from dips.evaluation.verdict import PolicyScore, run_verdict
from dips.model.trained_model import TrainedModel
from dips.policy.registry import learns
from dips.training.config import TrainConfig
from dips.training.resolve import Resolved
from dips.training.rollouts import policy_of


@dataclass(eq=False, kw_only=True)
class RunResult:
    """Result of one training run.

    Where baselines were trained beside the run, `trained`, `valid` and `test` are those of the best
    policy on validation. `learned` then keeps the scores of the policy that was asked for.
    """

    config: TrainConfig
    trained: TrainedModel
    parts: Parts
    epochs: int
    best_epoch: int
    """Epoch of the trained model: the first one with the best validation metric."""
    seconds: float
    """Training time, baselines included."""
    history: list[dict[str, Any]]
    valid: dict[str, float]
    test: Scores | None
    peak_memory: int
    error: str = ""
    """Why the run has no model: training diverged. Empty otherwise."""
    learned: PolicyScore | None = None
    """Scores of the policy that was asked for. None without baselines, or if it diverged."""
    baselines: list[PolicyScore] = field(default_factory=list)
    """Scores of the baselines that were trained beside the run."""
    resolved: Resolved | None = None
    """All settings, and the decisions on those that were left open."""

    @property
    def baseline_kept(self) -> bool:
        """Whether a baseline was better on validation and is the trained model."""
        return self.trained.policy_spec.name != self.config.sketch.policy

    def kept_epoch(self) -> str:
        """Describe the epoch of the trained model, for example "epoch 3 of reservoir"."""
        epoch = f"epoch {self.best_epoch}"
        if self.baseline_kept:
            baseline = self.trained.policy_spec.name
            return f"{epoch} of the baseline {baseline}, which is better on validation"
        return epoch + (" (before policy training started)" if self._is_untrained else "")

    @property
    def _is_untrained(self) -> bool:
        """Whether the best epoch precedes the first update of a learned policy."""
        return self.best_epoch <= self.config.policy_training.policy_warmup_epochs and learns(
            policy_of(self.config)
        )

    def verdict(self) -> str:
        """Return one sentence that compares run and baselines; empty without baselines."""
        return run_verdict(
            self.learned, self.baselines, self.config.sketch.size, is_trained=not self._is_untrained
        )

    def metrics(self) -> dict[str, Any]:
        """Return the content of metrics.json."""
        train = self.parts[0]
        return {
            "task": "explicit" if self.trained.explicit else "implicit",
            "policy": self.config.sketch.policy,
            "size": self.config.sketch.size,
            "every": self.config.sketch.every,
            "seed": self.config.training.seed,
            "fold": self.config.training.fold,
            "repeat": self.config.training.repeat,
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
            **(
                {"baselines": {one.name: dict(one.valid) for one in self.baselines}}
                if self.baselines
                else {}
            ),
        }

    def add_baseline(self, baseline: RunResult) -> None:
        """Record a baseline; where it is better on validation, it becomes the trained model.

        Args:
            baseline: Result of the baseline, trained on the same split.
        """
        self.seconds += baseline.seconds
        if baseline.error:
            return
        if not self.baselines and not self.error:
            self.learned = PolicyScore(self.config.sketch.policy, self.valid, self.test)
        self.baselines.append(
            PolicyScore(baseline.config.sketch.policy, baseline.valid, baseline.test)
        )
        name = primary_metric(baseline.valid)
        sign, better = (1, min) if name in LOWER_IS_BETTER else (-1, max)
        for line, other in zip(self.history, baseline.history, strict=False):
            line["baseline"] = better(other["valid"], line.get("baseline", other["valid"]))
        if self.error or sign * baseline.valid[name] < sign * self.valid[name]:
            self.trained, self.best_epoch, self.error = baseline.trained, baseline.best_epoch, ""
            self.valid, self.test = baseline.valid, baseline.test

    def raise_if_diverged(self) -> None:
        """Raise `TrainingDiverged` where the run has no model."""
        if self.error:
            raise TrainingDiverged(self.error)
