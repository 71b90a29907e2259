"""Download one file, with resume and checksum. Knows no dataset and prints nothing."""

from __future__ import annotations

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from dips.errors import DataError

Progress = Callable[[int, int | None], None]
"""Called with the bytes received and, if the server reports it, the total."""
_CHUNK = 1 << 18
_LOST = (urllib.error.URLError, http.client.HTTPException, OSError)


def fetch(
    url: str,
    target: Path,
    *,
    md5: str | None = None,
    progress: Progress | None = None,
    attempts: int = 4,
    wait: float = 1.0,
    timeout: float = 30.0,
) -> None:
    """Download a file; an interrupted download is resumed, also by a later call.

    The bytes received so far are in `TARGET.part`. The target exists only complete and checked.

    Args:
        url: The file to download.
        target: Where to write it.
        md5: Expected checksum; None to skip the check.
        progress: Called after each block.
        attempts: Number of connections to try.
        wait: Seconds between attempts.
        timeout: Seconds without data after which a connection is lost.

    Raises:
        DataError: If the server refuses, cannot be reached, or the checksum differs.
    """
    part = target.with_name(f"{target.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, attempts + 1):
        try:
            _continue(url, part, progress, timeout)
            break
        except urllib.error.HTTPError as error:
            error.close()
            _forget_empty(part)
            raise _by_hand(url, f"the server answers {error.code} {error.reason}") from error
        except _LOST as error:
            if attempt == attempts:
                _forget_empty(part)
                raise _by_hand(url, f"it cannot be reached ({error})") from error
            time.sleep(wait)
    if md5 is not None and checksum(part) != md5:
        found = checksum(part)
        part.unlink()
        raise _by_hand(url, f"the downloaded file has the checksum {found} instead of {md5}")
    part.replace(target)


def checksum(path: Path) -> str:
    """Return the md5 of a file, which dataset sites publish."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _continue(url: str, part: Path, progress: Progress | None, timeout: float) -> None:
    """Request the missing bytes and append them; raise if the connection ends too early."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "dips"} | ({"Range": f"bytes={have}-"} if have else {})
    request = urllib.request.Request(url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is missing, or the file has changed
            error.close()
            if error.headers.get("Content-Range") != f"bytes */{have}":
                part.unlink()
                raise ConnectionError("the file on the server has changed") from error
            return
        raise
    with response:
        resumed = response.status == 206
        have = have if resumed else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length is not None else None
        with part.open("ab" if resumed else "wb") as file:
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                have += len(chunk)
                if progress is not None:
                    progress(have, total)
    if total is not None and have < total:
        raise ConnectionError(f"the connection ended after {have} of {total} bytes")


def _forget_empty(part: Path) -> None:
    if part.exists() and part.stat().st_size == 0:
        part.unlink()


def _by_hand(url: str, why: str) -> DataError:
    return DataError(
        f"{url}: {why}; try again later, or download it by hand where there is a network and pass "
        "the file with --from FILE"
    )
