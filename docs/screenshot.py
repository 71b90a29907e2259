"""docs/report.png again: compare a few policies on a made world, report it, and take a picture."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

import dips
from dips import api

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "screenshot"
VIEW = {"width": 1200, "height": 1280}


def main() -> None:
    """Write docs/report.png."""
    browser = shutil.which("chromium")
    if browser is None:
        sys.exit("there is no Chromium here: make browser installs it")
    api.compare(
        dips.load("synthetic-implicit"),
        ["learned", "last", "reservoir", "frequent"],
        [2, 4, 8],
        folds=3,
        out=WORK / "compare",
        epochs=4,
        max_users=300,
    )
    api.report([WORK / "compare"], WORK / "report.html")
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        view = chromium.new_page(viewport=VIEW)
        view.goto((WORK / "report.html").as_uri())
        view.screenshot(path=ROOT / "docs" / "report.png")
        chromium.close()


if __name__ == "__main__":
    main()
