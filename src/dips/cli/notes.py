"""Print what readers say about data: the columns they read, and warnings, on standard error."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dips.errors import DataWarning


@contextmanager
def print_notes() -> Iterator[None]:
    """Print notes and warnings about data during the block, each once, as one line.

    Of several processes only the leading one prints.
    """
    shown: set[str] = set()

    def say(text: str) -> None:
        if text not in shown and os.environ.get("RANK", "0") == "0":
            shown.add(text)
            print(f"dips: {text}", file=sys.stderr)

    logger, handler = logging.getLogger("dips"), logging.Handler()
    handler.emit = lambda record: say(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    with warnings.catch_warnings():
        usual = warnings.showwarning
        warnings.simplefilter("always", DataWarning)

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, DataWarning):
                say(f"warning: {message}")
            else:
                usual(message, category, *where)

        warnings.showwarning = show  # type: ignore[assignment]
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
