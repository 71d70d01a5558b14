"""docs/protocol.md holds every rule that is cited, and names for each rule guards that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from deadpool_lab.sim.mutations import ALL

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "protocol.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
SIM = ROOT / "lab" / "deadpool_lab" / "sim"


def _rules() -> dict[int, tuple[str, str]]:
    """The name and the text of each rule."""
    chapter = TEXT.split("\n## The rules\n")[1].split("\n## ")[0]
    sections = re.split(r"^### Rule ", chapter, flags=re.MULTILINE)[1:]
    heads = [re.match(r"(\d+)\. (.+)\n", section) for section in sections]
    return {int(head[1]): (head[2], section) for head, section in zip(heads, sections, strict=True) if head}


def _table(title: str) -> list[list[str]]:
    """The rows of the one table of a chapter, without its head."""
    chapter = TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in chapter.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in row] for row in rows]


RULES = _rules()
GUARDS = {
    number: section.split("**Guards:**")[-1].replace("\n", " ").split(", ") for number, (_, section) in RULES.items()
}
CHECKERS = {row[0].strip("()") for row in _table("The checkers")}
CITING = sorted(
    path
    for pattern in ("src/**/*.py", "lab/**/*.py", "tests/**/*.py", "docs/**/*.md", "*.md")
    for path in ROOT.glob(pattern)
    if path not in (DOCUMENT, Path(__file__))
)


def citations(text: str) -> list[str]:
    """Each place that names a rule by number, in one line. The name of a checker, as in `fail("rule 4"`, is none."""
    flat = re.sub(r"\s*\n[\s#]*", " ", text)
    found = re.finditer(r'(?<!fail\(")\brules? \d+.{0,60}', flat, flags=re.IGNORECASE)
    return [match[0] for match in found]


def test_citations_name_a_rule_and_what_it_is_called() -> None:
    allowed = tuple(f"{number}{form}" for number, (name, _) in RULES.items() for form in (f", {name}", f" ({name})"))
    wrong = [
        f"{path.relative_to(ROOT)}: {cited}"
        for path in CITING
        for cited in citations(path.read_text(encoding="utf-8"))
        if not cited[len("rule ") :].startswith(allowed)
    ]
    assert wrong == []


def test_citations_are_found_across_lines() -> None:
    assert citations("as in (rule\n    # 18, one\n    # coordinator per term)") == [
        "rule 18, one coordinator per term)"
    ]


@pytest.mark.parametrize("number", RULES)
def test_a_rule_has_a_counterexample_and_guards_that_exist(number: int) -> None:
    section = RULES[number][1]
    assert "\n**Without it.** " in section and "\n**Guards:** " in section
    assert [guard.strip() for guard in GUARDS[number] if not _exists(guard.strip())] == []


def _exists(guard: str) -> bool:
    kind, _, name = guard.partition(" ")
    match kind:
        case "checker":
            return name.strip("()") in CHECKERS
        case "mutation":
            return int(name) in {mutation.number for mutation in ALL}
        case "transcript":
            return (ROOT / "tests" / "protocol" / "transcripts" / name).is_file()
        case "test":
            path, _, function = name.partition("::")
            return f"\ndef {function}(" in (ROOT / path).read_text(encoding="utf-8")
    return False


def test_rules_are_numbered_without_a_gap() -> None:
    assert list(RULES) == list(range(1, len(RULES) + 1))


def test_the_checkers_of_the_document_are_those_of_the_simulator() -> None:
    files = sorted(path for folder in (SIM, SIM / "checking") for path in folder.glob("*.py"))
    source = "\n".join(path.read_text(encoding="utf-8") for path in files)
    assert set(re.findall(r'\bfail\("([^"]+)"', source)) == CHECKERS
    named = {
        node.name
        for node in ast.walk(ast.parse(source.replace("from __future__ import annotations", "")))
        if hasattr(node, "name")
    }
    used = {name for row in _table("The checkers") for name in re.findall(r"`(\w+)`", row[2])}
    assert used <= named


def test_the_mutations_of_the_document_are_those_of_the_simulator() -> None:
    documented = [(int(number), defect, int(rule)) for number, defect, rule in _table("The mutations")]
    assert documented == [(mutation.number, mutation.defect, mutation.rule) for mutation in ALL]


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: mutation.name)
def test_a_mutation_guards_the_rule_that_it_breaks(mutation) -> None:  # type: ignore[no-untyped-def]
    assert f"mutation {mutation.number}" in [guard.strip() for guard in GUARDS[mutation.rule]]
