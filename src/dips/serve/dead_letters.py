"""Write invalid events to a dead-letter file, each with its reason."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import final

from dips.serve.stores.base import StoreError


@final
class DeadLetters:
    """File of invalid lines. They are on the disk before the rest of their batch is committed.

    Args:
        path: The file, in JSON lines; created with the first invalid line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, letters: Iterable[tuple[int, str, bytes]]) -> None:
        """Append invalid lines, and synchronise the file to the disk.

        Args:
            letters: Triples of line number, reason and line.

        Raises:
            StoreError: The file cannot be written.
        """
        rows = [
            {"line": number, "reason": reason, "event": text.decode(errors="replace")}
            for number, reason, text in letters
        ]
        if not rows:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreError(
                f"{self.path}: invalid events cannot be written there ({error}); "
                "choose another file with --dead-letters"
            ) from None
