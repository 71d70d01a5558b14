"""What integrations refuse: each refusal is one of an enumeration, is raised somewhere, and is on its page with its
reason. docs/howto/other-frameworks.md counts them."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import deadpool.integrations
from deadpool.integrations.refusals import Refusals, RefusedUse, Why

ROOT = Path(__file__).parents[2]
FOLDER = Path(deadpool.integrations.__file__).parent
FRAMEWORKS = ("accelerate", "transformers", "lightning", "torchtitan", "deepspeed", "megatron")
ALSO = {"transformers": ("accelerate", ("STATEFUL_LOADER", "RESUMED_IN_A_STREAM"))}
"""What a page lists of another integration, which its own uses."""
COUNTED = tuple(why for why in Why if why is not Why.MISUSE)


def enumeration(framework: str) -> type[Refusals]:
    """Without the package around it, which imports the library."""
    spec = importlib.util.spec_from_file_location(f"{framework}_refusals", FOLDER / framework / "refusals.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (found,) = (each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__)
    assert issubclass(found, Refusals)
    return found


def refusals_of(framework: str) -> list[RefusedUse]:
    """Those that its page counts."""
    members = list(enumeration(framework))
    if framework in ALSO:
        other, names = ALSO[framework]
        members += [enumeration(other)[name] for name in names]
    return [each.refusal for each in members if each.refusal.why is not Why.MISUSE]


def rows_of(refusals: Iterable[RefusedUse]) -> list[str]:
    """One row for each reason, in the order of the reasons' kinds."""
    grouped: dict[tuple[int, str], list[RefusedUse]] = {}
    for each in refusals:
        grouped.setdefault((COUNTED.index(each.why), each.reason), []).append(each)
    return [
        f"| {'; '.join(each.what for each in group)} | {COUNTED[order].value} | {reason} |"
        for (order, reason), group in sorted(grouped.items(), key=lambda item: item[0][0])
    ]


def section(page: Path, title: str) -> str:
    found = re.search(rf"^## {title}$(.*?)(?=^## |\Z)", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page.name} has no section {title!r}"
    return found[1]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_page_lists_what_is_refused_with_its_reason(framework):
    told = section(ROOT / "docs/howto" / f"{framework}.md", "What is refused, and why")
    rows = [line for line in told.splitlines() if line.startswith("| ") and line != "| | | |"]
    assert rows == rows_of(refusals_of(framework))


def test_page_of_all_frameworks_counts_refusals():
    told = section(ROOT / "docs/howto/other-frameworks.md", "What is refused, counted")
    rows = {
        cells[0]: cells[2:]
        for cells in (re.split(r" *\| *", line[2:-2]) for line in told.splitlines()[1:] if "|" in line)
    }
    for framework in FRAMEWORKS:
        counts = Counter(each.why for each in refusals_of(framework))
        assert rows[f"[{framework}]({framework}.md)"] == [
            str(counts.total()),
            *(str(counts[why]) for why in COUNTED),
        ], framework


def trees(framework: str) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((FOLDER / framework).glob("*.py")):
        if path.name != "refusals.py":
            yield path.name, ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_refusal_is_raised_somewhere(framework):
    kind = enumeration(framework)
    users = FRAMEWORKS if framework in {other for other, _ in ALSO.values()} else (framework,)
    named = {
        node.attr
        for user in users
        for _, tree in trees(user)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == kind.__name__
    }
    assert named == {each.name for each in kind}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_integration_refuses_without_a_member(framework):
    """Also nothing that it raises is a bare ConfigError."""
    names = {
        (file, node.id)
        for file, tree in trees(framework)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == "ConfigError"
    }
    assert names == set()
