"""The script that writes the pre-trained file: kinds that were not asked for stay as they were."""

import pretrain
import torch

from dips.policy.pretrained import pretrained_origin, pretrained_parameters

SIGNAL = {"ratings": "residual", "items": "predicted_score", "repeats": "none"}


def test_other_kinds_keep_their_parameters_and_their_origin(tmp_path, monkeypatch):
    def made(kind, *, worlds, epochs, cycles, seed, on_epoch):
        on_epoch(1, 1, 0.5)
        return SIGNAL[kind], {"a": torch.full((2,), float(worlds))}

    monkeypatch.setattr(pretrain, "pretrain", made)
    out = tmp_path / "file"
    pretrain.main(["--out", str(out), "--worlds", "3"])
    pretrained_parameters.cache_clear()
    pretrain.main(["--out", str(out), "--worlds", "5", "--kinds", "items"])
    pretrained_parameters.cache_clear()
    worlds = {signal: pretrained_origin(out)[signal]["worlds"] for signal in SIGNAL.values()}
    assert worlds == {"residual": 3, "predicted_score": 5, "none": 3}
    for signal, count in worlds.items():
        assert pretrained_parameters(signal, out)["a"].tolist() == [count, count]
    assert "--kinds items" in pretrained_origin(out)["predicted_score"]["command"]
