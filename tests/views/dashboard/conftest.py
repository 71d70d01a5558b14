"""A real browser for tests of the page, and where its pictures go."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
ARTEFACTS = ROOT / "out" / "dashboard"
PICTURES = ROOT / "docs" / "pictures"


@pytest.fixture
def browser() -> Iterator[Any]:
    """Debian's Chromium, driven by Playwright. It is given no profile and reaches nothing but loopback."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: scripts/setup installs it")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium: scripts/packages installs it")
    flags = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"]
    with driver.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=flags)
        yield found
        found.close()


@pytest.fixture
def picture(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Keeps a picture of a page as an artefact; with --update-pictures also in the documentation."""

    def take(page: Any, name: str, *, kept: bool = True, **options: Any) -> None:
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        path = ARTEFACTS / f"{name}.png"
        page.screenshot(path=path, **options)
        _reduce(path)
        if kept and request.config.getoption("--update-pictures"):
            shutil.copy(path, PICTURES / f"dashboard-{name}.png")

    return take


def _reduce(path: Path) -> None:
    """To a palette, where the library for it is there: a third of the size."""
    try:
        from PIL import Image
    except ImportError:
        return
    with Image.open(path) as image:
        reduced = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    reduced.save(path, optimize=True)
