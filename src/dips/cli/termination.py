"""Turn SIGTERM into something that a loop can wait for, so that it finishes what it has begun."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def termination() -> Iterator[int]:
    """Yield a file descriptor from which something can be read once SIGTERM has arrived.

    Inside the block SIGTERM does not end the process.
    """
    out, into = os.pipe()
    os.set_blocking(into, False)
    usual = signal.signal(signal.SIGTERM, lambda number, frame: os.write(into, b"."))
    try:
        yield out
    finally:
        signal.signal(signal.SIGTERM, usual)
        os.close(out)
        os.close(into)
