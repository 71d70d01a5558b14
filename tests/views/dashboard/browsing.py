"""What tests ask of a page in a browser: a served folder, a login, and how well its texts can be read."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from waiting import LIMIT_S, wait_until

COMMAND = [sys.executable, "-m", "deadpool.cli.main"]
WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 390, "height": 844}

CONTRASTS = Path(__file__).with_name("contrast.js").read_text(encoding="utf-8")
"""The contrast ratios of all texts that can be seen, by the formula of WCAG 2, and those of the cells of the map."""


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """`deadpool show dashboard` for this folder; the address of the page."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DEADPOOL_")}
    words = [*COMMAND, "show", "dashboard", str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        try:
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found
            yield found.group()
        finally:
            server.terminate()
            server.wait(LIMIT_S)


def token_of(folder: Path) -> str:
    words = [*COMMAND, "show", "dashboard", str(folder), "--token"]
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout.strip()


class Requests:
    """Everything that a page has asked for, and what went wrong in it."""

    def __init__(self, page: Any) -> None:
        self.urls: list[str] = []
        self.errors: list[str] = []
        page.on("request", lambda request: self.urls.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)

    def elsewhere(self, address: str) -> list[str]:
        return [url for url in self.urls if not url.startswith((address, "data:"))]


def log_in(page: Any, address: str, token: str) -> None:
    page.set_default_timeout(1000 * LIMIT_S)
    page.goto(address)
    page.fill("#token", token)
    page.click("#login button")
    page.wait_for_selector("#figure-step")


def wait(page: Any, condition: str) -> None:
    """Playwright's own wait_for_function evaluates its text inside the page, which the page's policy forbids."""
    wait_until(lambda: page.evaluate(condition), condition)


def text_of(page: Any, selector: str) -> str:
    return str(page.inner_text(selector))
