"""A user's own module with one method is trained by `dips.train`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import dips
from dips.data.splitting import by_users
from dips.data.synthetic.planted_world import planted, planted_positions

SOURCE = '''
import dips, torch

class Weighted(torch.nn.Module, dips.Policy):
    """Weights of the distance from the mean rating and of the age."""

    def __init__(self):
        super().__init__()
        self.distance = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.recency = torch.nn.Parameter(torch.tensor(0.3))

    def score(self, candidates, signals):
        far = (candidates.rating.double() - 3).abs()
        return self.distance * far - self.recency * candidates.age.double()
'''


@pytest.mark.parametrize(
    "settings",
    [
        {"credit": "survival"},
        {"credit": "identity", "user_batch": 30, "update_interval": 4, "batch_size": 128},
        {"credit": "discount", "selection": "sampled", "estimator": "gumbel"},
    ],
    ids=["whole", "live", "gumbel"],
)
def test_it_learns_to_keep_the_informative_interactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """In planted data these are ratings far from the mean; initially it keeps the last."""
    (tmp_path / "weighted.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    data = planted(users=100, items=16, events=16, genres=2, noise=0.4, seed=3)
    parts = by_users(data, (0.6, 0.2, 0.2), seed=0)
    common: dict[str, Any] = {
        "policy": "weighted:Weighted", "size": 2, "dim": 4, "epochs": 12, "batch_size": 256,
        "patience": 12, "policy_batch_size": 64, "policy_lr": 0.1, "policy_warmup_epochs": 1,
        "policy_freeze_epochs": 0, "seed": 1,
    }  # fmt: skip
    outcome = dips.train(*parts, **{**common, **settings})
    policy = outcome.trained.policy
    assert isinstance(policy, torch.nn.Module)
    learned = {name: float(value) for name, value in policy.named_parameters()}
    assert learned["distance"] > 1
    assert learned["recency"] != pytest.approx(0.3)
    start = dips.train(*parts, **{**common, **settings, "policy_lr": 0.0})
    assert outcome.valid["rmse"] < start.valid["rmse"] - 0.1
    columns = dips.sketches(outcome, parts[2])
    place = zip(columns["user"], columns["position"], strict=True)
    starts = {parts[2].user_id(u): int(parts[2].starts[u]) for u in range(parts[2].users)}
    keys = planted_positions(data)
    share = [bool(keys[starts[user] + int(position)]) for user, position in place]
    assert sum(share) / len(share) > 0.9
    sys.modules.pop("weighted")
