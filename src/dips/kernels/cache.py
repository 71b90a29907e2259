"""Directory of compiled numba programs, named after a hash of the kernels' sources.

numba checks only the file of a program, but programs contain functions of other files. A directory
per hash makes all of them valid together. Knows nothing of the programs themselves.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path

from dips.kernels import layout
from dips.numerics import fixed_point, hashing

LAUNCHER = Path(__file__).with_name("numba_launch.py")
"""It calls compiled programs, but is not compiled."""
KERNELS = (
    "numba_decisions.roll_out", "numba_decisions.observe", "numba_decisions.set_network_scores",
    "numba_inner_loop.residuals", "numba_softmax.loss_and_gradients",
    "numba_softmax.entry_gradients", "numba_softmax.score",
)  # fmt: skip
"""Loops that are called from Python; all other compiled functions are parts of them."""


def sources_hash() -> str:
    """Return a hash of all sources that compiled programs are made from."""
    files = sorted(set(Path(__file__).parent.glob("numba_*.py")) - {LAUNCHER})
    files += [Path(module.__file__ or "") for module in (layout, fixed_point, hashing)]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


@cache
def cache_directory() -> str:
    """Return the directory of compiled programs, created if missing; "" if it is not writable.

    It is `kernels-<hash>` under $NUMBA_CACHE_DIR, else under $DIPS_CACHE, else under `dips` in the
    user's cache directory ($XDG_CACHE_HOME or ~/.cache). Several processes may share it: numba
    writes a file under another name and renames it.
    """
    try:
        folder = _root() / f"kernels-{sources_hash()}"
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError):  # no home directory is a RuntimeError
        return ""
    return str(folder)


def compiled_kernels() -> list[str]:
    """Return the names of KERNELS that are in `cache_directory`, without their files."""
    folder = cache_directory()
    found = {path.name.partition("-")[0] for path in Path(folder).rglob("*.nbi")} if folder else ()
    return [name.partition(".")[2] for name in KERNELS if name in found]


def _root() -> Path:
    for variable in ("NUMBA_CACHE_DIR", "DIPS_CACHE"):
        if os.environ.get(variable):
            return Path(os.environ[variable])
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dips"
