"""Fixtures: a browser that opens pages."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Start the system's Chromium, because playwright's download does not fit every machine."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("there is no Chromium here: make browser installs it")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def look(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Open a page; fail on console messages, errors and requests for other resources."""
    complaints: list[str] = []
    contexts = []

    def opened(path: Path, *, width: int = 1280, scheme: str = "light") -> Any:
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        contexts.append(context)
        view = context.new_page()
        view.on("console", lambda message: complaints.append(message.text))
        view.on("pageerror", lambda error: complaints.append(str(error)))
        view.on("request", lambda request: complaints.extend(_elsewhere(request.url, path)))
        view.goto(path.as_uri())
        return view

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def _elsewhere(url: str, path: Path) -> list[str]:
    return [] if url.partition("#")[0] == path.as_uri() or url.startswith("data:") else [url]
