"""The result of one training run: trained model, scores, history and baselines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from dips.data.splitting import Parts, validation_halves
from dips.errors import TrainingDiverged
from dips.evaluation.metrics import LOWER_IS_BETTER, primary_metric
from dips.evaluation.progressive import Scores
from dips.evaluation.run_verdict import (
    Verdict,
    compare_on_test,
    decide,
    diverged_verdict,
    measure_gain,
)
from dips.model.trained_model import TrainedModel
from dips.policy.registry import build_policy, learns
from dips.policy.settings import LEARNED, PRETRAINED
from dips.stream.users import EventColumns, make_stream
from dips.training.config import TrainConfig
from dips.training.resolve import Resolved


@dataclass(eq=False, kw_only=True)
class PolicyResult:
    """A trained policy with its recommender, and its scores."""

    name: str
    trained: TrainedModel
    best_epoch: int
    """Epoch of the trained model: the first one with the best metric on the selection users."""
    valid: Scores
    """Scores of all validation users."""
    test: Scores | None
    selection_loss: float
    """Primary metric of the validation users that select the model, as a number to minimise."""

    @property
    def is_initial(self) -> bool:
        """Whether it is a learned policy with its initial parameters; never for `pretrained`."""
        policy = self.trained.policy
        if self.name == PRETRAINED or not (isinstance(policy, nn.Module) and learns(policy)):
            return False
        initial = build_policy(self.trained.policy_spec, self.trained.seed)
        assert isinstance(initial, nn.Module)
        found = {name: value.cpu() for name, value in policy.state_dict().items()}
        return all(torch.equal(value, found[name]) for name, value in initial.state_dict().items())


@dataclass(eq=False, kw_only=True)
class RunResult:
    """Result of one training run.

    Where baselines were trained beside the run, `kept` is the best policy on the validation users
    that select the model.
    """

    config: TrainConfig
    parts: Parts
    own: PolicyResult | None
    """The policy that was asked for; None if it diverged."""
    epochs: int
    all_epochs: int
    """Epochs that were trained, those of other starts and of baselines included."""
    seconds: float
    """Training time of `all_epochs`."""
    history: list[dict[str, Any]]
    """One line per epoch; `valid` is the primary metric of the users that select the model."""
    peak_memory: int
    error: str = ""
    """Why the policy that was asked for has no model: training diverged. Empty otherwise."""
    baselines: list[PolicyResult] = field(default_factory=list)
    """The baselines that were trained beside the run."""
    starts: dict[str, dict[str, float] | str] = field(default_factory=dict)
    """By initial policy: its validation metrics, or why it diverged. Empty with one of them."""
    resolved: Resolved | None = None
    """All settings, and the decisions on those that were left open."""
    verdict: Verdict | None = None
    """Comparison with the best baseline; None without baselines."""

    @property
    def kept(self) -> PolicyResult:
        """The best policy on the selection users; on equal terms the one that was asked for."""
        found = [one for one in (self.own, *self.baselines) if one is not None]
        return min(found, key=lambda one: one.selection_loss)

    @property
    def policy(self) -> str:
        """Name of the policy that the run really has: the one asked for, or a baseline."""
        return self.kept.name

    @property
    def trained(self) -> TrainedModel:
        """The trained model that was kept."""
        return self.kept.trained

    @property
    def best_epoch(self) -> int:
        """Epoch of the trained model."""
        return self.kept.best_epoch

    @property
    def valid(self) -> dict[str, float]:
        """Metrics of all validation users."""
        return self.kept.valid.metrics

    @property
    def test(self) -> Scores | None:
        """Scores of the test users; None if they were not scored."""
        return self.kept.test

    @property
    def baseline_kept(self) -> bool:
        """Whether a baseline was better and is the trained model."""
        return self.kept is not self.own

    def kept_epoch(self) -> str:
        """Describe the epoch of the trained model, for example "epoch 3 of reservoir"."""
        epoch = f"epoch {self.best_epoch}"
        if self.baseline_kept:
            return f"{epoch} of the baseline {self.policy}, which is better on validation"
        if self.starts:
            epoch += f" of the start at {self._initial_policy}, the better one on validation"
        return epoch + (" (the policy has its initial parameters)" if self.kept.is_initial else "")

    def judge(self, device: str) -> None:
        """Compare the policy with the best baseline; set `verdict`.

        Args:
            device: Where the users that the verdict is measured on are rolled out.
        """
        best = min(self.baselines, key=lambda one: one.selection_loss, default=None)
        if best is None:
            return
        if self.own is None:
            metric = primary_metric(best.valid.metrics)
            self.verdict = diverged_verdict(self.config.sketch.policy, best.name, metric)
            return
        halves = validation_halves(self.parts[1].users)
        users = self.parts[1].select(halves.verdict)
        columns = EventColumns.of(users, device, self.own.trained.side)
        gains = measure_gain(self.own.trained, best.trained, make_stream([users], columns))
        tested = None
        if self.own.test is not None and best.test is not None:
            tested = compare_on_test(self.own.test, best.test)
        self.verdict = decide(
            self.own.name,
            best.name,
            gains,
            baseline_kept=self.baseline_kept,
            is_initial=self.own.is_initial,
            test=tested,
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
            "kept_policy": self.policy,
            **({"initial_policy": self._initial_policy} if self._initial_policy else {}),
            **({"starts": self.starts} if self.starts else {}),
            "valid": self.valid,
            "test": self.test.metrics if self.test else {},
            "verdict": self.verdict.to_dict() if self.verdict else {},
            "train_seconds": round(self.seconds, 3),
            "interactions_per_second": round(self.interactions_per_second, 1),
            "peak_memory_bytes": self.peak_memory,
            **(
                {"baselines": {one.name: dict(one.valid.metrics) for one in self.baselines}}
                if self.baselines
                else {}
            ),
        }

    @property
    def interactions_per_second(self) -> float:
        """Training interactions of all epochs by the training time."""
        return len(self.parts[0]) * self.all_epochs / max(self.seconds, 1e-9)

    @property
    def _initial_policy(self) -> str:
        """Where `learned` started, if it was asked for."""
        if self.own is None or self.own.name != LEARNED:
            return ""
        return self.own.trained.policy_spec.initial

    def or_better(self, other: RunResult) -> RunResult:
        """Return the better of two starts of the policy, with the training time of both.

        Args:
            other: The run from another initial policy. On equal terms it is not chosen.
        """
        both = [one for one in (self, other) if one.own is not None]
        kept = min(both, key=lambda one: one.kept.selection_loss) if both else self
        kept.starts = {
            one.config.policy_training.initial_policy: one.error
            if one.own is None
            else dict(one.own.valid.metrics)
            for one in (self, other)
        }
        kept.all_epochs = self.all_epochs + other.all_epochs
        kept.seconds = self.seconds + other.seconds
        kept.peak_memory = max(self.peak_memory, other.peak_memory)
        return kept

    def add_baseline(self, baseline: RunResult) -> None:
        """Record a baseline that was trained on the same split.

        Args:
            baseline: Result of the baseline.
        """
        self.all_epochs += baseline.all_epochs
        self.seconds += baseline.seconds
        if baseline.own is None:
            return
        self.baselines.append(baseline.own)
        self.error = ""
        metric = primary_metric(baseline.own.valid.metrics)
        better = min if metric in LOWER_IS_BETTER else max
        for line, other in zip(self.history, baseline.history, strict=False):
            line["baseline"] = better(other["valid"], line.get("baseline", other["valid"]))

    def raise_if_diverged(self) -> None:
        """Raise `TrainingDiverged` where the run has no model."""
        if self.error:
            raise TrainingDiverged(self.error)
