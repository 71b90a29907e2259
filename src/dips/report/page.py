"""Self-contained HTML pages: style and script are inside, nothing is loaded."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib.resources import files
from string import Template


def asset(name: str) -> str:
    """Return the text of a file of this package."""
    return files("dips.report").joinpath(name).read_text(encoding="utf-8")


def page(title: str, body: str, *, style: str = "", script: str = "") -> str:
    """Return a whole page. Its content security policy forbids requests and other scripts.

    Args:
        title: Title of the page, plain text.
        body: Markup of the body.
        style: Further CSS.
        script: JavaScript; the only one that the page allows.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(asset("page.html")).substitute(
        title=escape(title),
        allowed=f"'sha256-{digest}'" if script else "'none'",
        style=asset("page.css") + style,
        body=body,
        script=f"<script>{script}</script>" if script else "",
    )
