"""Pre-train the policy on synthetic worlds and write the file that ships with the package.

    make pretrain

No real data is read. The worlds are those of `dips.data.synthetic.family`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

from dips.data.synthetic.family import KINDS
from dips.policy.pretrained import (
    SHIPPED,
    SIGNALS,
    pretrained_origin,
    pretrained_parameters,
    save_pretrained,
)
from dips.studies.pretraining import pretrain


def main(argv: list[str] | None = None) -> None:
    """Pre-train one network for each kind of world."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=22, help="worlds of each kind")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--cycles", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--out", type=Path, default=SHIPPED)
    given = parser.parse_args(argv)
    typed = sys.argv[1:] if argv is None else argv
    about = {name: getattr(given, name) for name in ("worlds", "epochs", "cycles", "seed")}
    about = {"command": shlex.join(["python", "results/pretrain.py", *typed]), **about}
    found, origins, start = {}, {}, time.monotonic()
    for kind in given.kinds.split(","):

        def report(cycle: int, epoch: int, loss: float, kind: str = kind) -> None:
            seconds = time.monotonic() - start
            print(f"{kind}: cycle {cycle}, epoch {epoch}: loss {loss:.4f}, {seconds:.0f} s")
            sys.stdout.flush()

        signal, parameters = pretrain(
            kind,
            worlds=given.worlds,
            epochs=given.epochs,
            cycles=given.cycles,
            seed=given.seed,
            on_epoch=report,
        )
        found[signal], origins[signal] = parameters, about
    if given.out.exists():  # kinds that were not asked for stay
        found = {**{name: pretrained_parameters(name, given.out) for name in SIGNALS}, **found}
        origins = {**pretrained_origin(given.out), **origins}
    save_pretrained(found, origins, given.out)
    print(f"{given.out.name}: {given.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
