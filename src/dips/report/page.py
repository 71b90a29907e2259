"""A page as one file: style and script inside, nothing from anywhere else, everything escaped."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib.resources import files
from string import Template


def asset(name: str) -> str:
    """A file that lies beside this module."""
    return files("dips.report").joinpath(name).read_text(encoding="utf-8")


def page(title: str, body: str, *, style: str = "", script: str = "") -> str:
    """The whole page; the body is markup, the title is text.

    The page forbids the browser all loading, and every script but the one given.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(asset("page.html")).substitute(
        title=escape(title),
        allowed=f"'sha256-{digest}'" if script else "'none'",
        style=asset("page.css") + style,
        body=body,
        script=f"<script>{script}</script>" if script else "",
    )
