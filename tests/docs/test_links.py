"""Links between the pages lead somewhere, and what the README says of installing is what the package says of itself."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def _links(page: Path) -> Iterator[tuple[str, str]]:
    for target in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield path, anchor


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    broken = []
    for path, anchor in _links(page):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(f"{path}#{anchor}")
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_of_the_site_link_only_to_the_site(page: Path) -> None:
    if page.parent == ROOT:
        return
    outside = [path for path, _ in _links(page) if not (page.parent / path).resolve().is_relative_to(ROOT / "docs")]
    assert outside == []


def test_the_readme_installs_what_the_package_is_called() -> None:
    name = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
    installed = {
        found
        for page in PAGES
        for found in re.findall(r"pip install '?([A-Za-z][\w-]*)", page.read_text(encoding="utf-8"))
    }
    assert installed == {name}


def test_the_readme_keeps_its_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in ("scripts/demo", "scripts/check"):
        assert command in text
        assert (ROOT / command).is_file()
