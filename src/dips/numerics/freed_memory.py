"""Let the C library keep freed memory for the next tensor, while a CPU trains.

By default glibc returns large blocks to the system when a tensor is deleted. The next tensor then
gets new pages, and the system fills each with zeros. In training this takes as long as the
arithmetic: MovieLens 1M, `learned`, K = 8, one core: 72 s for two epochs, 40 s with this module
(peak memory 1.01 and 1.40 GB; LOG.md, 2026-11-18).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of `mallopt`, from malloc.h."""
KEPT = {M_MMAP_THRESHOLD: 2**30, M_TRIM_THRESHOLD: 2**31 - 1}
"""Blocks up to the first size lie on the heap; free memory at its end up to the second is kept."""
USUAL = {M_MMAP_THRESHOLD: 2**25, M_TRIM_THRESHOLD: 2**26}
"""The same outside: what glibc adapts to by itself where large blocks are used."""


@contextmanager
def keep_freed_memory() -> Iterator[bool]:
    """Keep freed memory inside the block; give it back to the system at its end.

    Yields:
        Whether the C library can do it: glibc can, from version 2.35 on.
    """
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not (hasattr(library, "mallopt") and hasattr(library, "malloc_trim")):
        yield False
        return
    assert library is not None
    supported = bool(library.mallopt(M_MMAP_THRESHOLD, KEPT[M_MMAP_THRESHOLD]))
    if supported:
        library.mallopt(M_TRIM_THRESHOLD, KEPT[M_TRIM_THRESHOLD])
    try:
        yield supported
    finally:
        if supported:
            for parameter, value in USUAL.items():
                library.mallopt(parameter, value)
            library.malloc_trim(0)
