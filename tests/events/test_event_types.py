"""Every event that code emits has a type with all its fields, every type is emitted, and docs/events.md is current.

What code emits is read from its syntax trees: calls of `emit`, and values of `Event`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import deadpool
from deadpool.control.coordinator.progress import ConsoleLines, console_line
from deadpool.events.types import BY_NAME, COMMON_FIELDS, GROUPS
from deadpool.events.types.__main__ import document

SOURCE = Path(deadpool.__file__).parent
REPOSITORY = SOURCE.parent.parent
ADDED_BY_EMIT = {"cause", "generation", "t"}
FORWARDS = {"emit", "_emit"}  # functions that make an Event of what they are called with
EMITS = re.compile(r"emit\(|\bEvent\(")


def emissions() -> Iterator[tuple[str, str, set[str]]]:
    """Where, which event, and the fields that are given there."""
    for path in sorted(SOURCE.rglob("*.py")):
        where = str(path.relative_to(SOURCE))
        if where == "events.py" or where.startswith("event_types"):
            continue
        text = path.read_text(encoding="utf-8")
        if not EMITS.search(text):
            continue  # every process of a parallel run reads all of this
        tree = ast.parse(text)
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                for name, fields in _emitted(call, function, tree):
                    yield where, name, fields


def _emitted(call: ast.Call, function: ast.FunctionDef, tree: ast.Module) -> Iterator[tuple[str, set[str]]]:
    called = _name_of(call.func)
    if called in FORWARDS and call.args:
        fields = _keywords(call, function)
        yield from ((name, fields) for name in _names(call.args[0], tree))
    elif called == "Event" and function.name not in FORWARDS:
        for what in (keyword.value for keyword in call.keywords if keyword.arg == "what"):
            fields = _keywords(call, function) - ADDED_BY_EMIT - {"what"}
            yield from ((name, fields) for name in _names(what, tree, function))


def _name_of(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _names(what: ast.expr, tree: ast.Module, function: ast.FunctionDef | None = None) -> list[str]:
    """Constants; both of a choice; of a parameter what the function is called with in its module."""
    match what:
        case ast.Constant(value=str(name)):
            return [name]
        case ast.IfExp(body=one, orelse=other):
            return _names(one, tree) + _names(other, tree)
        case ast.Name() if function is not None:
            calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
            given = [call.args[0] for call in calls if _name_of(call.func) == function.name and call.args]
            return [name for each in given for name in _names(each, tree)]
    raise AssertionError(f"the name of an event has to be plain to see: {ast.unparse(what)}")


def _keywords(call: ast.Call, function: ast.FunctionDef) -> set[str]:
    fields: set[str] = set()
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg == "detail":
            fields |= _keys(keyword.value, function)
        else:
            fields.add(keyword.arg)
    return fields


def _keys(value: ast.expr, function: ast.FunctionDef) -> set[str]:
    """Of a dict that is written out, or of a local variable; `facts()` of the protocol's parts are known by name."""
    match value:
        case ast.Dict(keys=keys, values=values):
            plain = {key.value for key in keys if isinstance(key, ast.Constant)}
            inner = (_keys(each, function) for key, each in zip(keys, values, strict=True) if key is None)
            return {str(key) for key in plain}.union(*inner)
        case ast.Name(id=name):
            return _keys(_assigned(name, function), function)
        case ast.Call(func=ast.Attribute(attr="facts")):
            return set()
    raise AssertionError(f"the fields of an event have to be plain to see: {ast.unparse(value)}")


def _assigned(name: str, function: ast.FunctionDef) -> ast.expr:
    for node in ast.walk(function):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            assert isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            return node.value
    raise AssertionError(f"{function.name}: {name} is not assigned there")


EMITTED = list(emissions())


@pytest.mark.parametrize(("where", "name", "fields"), EMITTED, ids=[f"{name}-{where}" for where, name, _ in EMITTED])
def test_what_is_emitted_has_a_type_with_all_its_fields(where, name, fields):
    assert name in BY_NAME, f"{where} emits {name}: describe it in deadpool/event_types"
    assert fields - BY_NAME[name].fields.keys() == set(), f"{where} emits these fields of {name}: describe them"


def test_every_type_is_emitted():
    assert sorted(BY_NAME.keys() - {name for _, name, _ in EMITTED}) == []


FROM_FACTS = {"straggler": {"factor", "own_s", "usual_s", "step_s"}, "no_progress": {"faults", "ranks", "nodes"}}
"""What these events take from `facts()`: the transcripts below check it."""


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_every_field_of_a_type_is_emitted(name):
    emitted = set().union(*(fields for _, each, fields in EMITTED if each == name))
    assert BY_NAME[name].fields.keys() - emitted == FROM_FACTS.get(name, set())


def transcribed() -> set[tuple[str, str]]:
    """Each event with each of its fields, as transcripts of the cores have them."""
    lines = (
        line
        for path in (REPOSITORY / "tests" / "protocol" / "transcripts").glob("*.txt")
        for line in path.read_text(encoding="utf-8").splitlines()
    )
    events = (match for line in lines if (match := re.match(r"\s+event (\w+)(.*)", line)))
    plain = ((event[1], re.sub(r"='.*?'(?= \w+=|$)", "=", event[2])) for event in events)
    return {(name, field) for name, rest in plain for field in re.findall(r" (\w+)=", rest)}


def test_fields_in_transcripts_have_types():
    found = transcribed()
    assert len(found) > 40
    unknown = [
        (name, field) for name, field in sorted(found) if field not in {*BY_NAME[name].fields, *COMMON_FIELDS, "step"}
    ]
    assert unknown == []
    assert {field for name, field in found if name == "straggler"} >= FROM_FACTS["straggler"]
    assert {field for name, field in found if name == "no_progress"} >= FROM_FACTS["no_progress"]


def test_document_is_current():
    text = (REPOSITORY / "docs" / "events.md").read_text(encoding="utf-8")
    assert text == document(), "renew it: python -m deadpool.events.types > docs/events.md"


def test_names_are_used_once():
    assert sum(map(len, GROUPS.values())) == len(BY_NAME)


@pytest.mark.parametrize("event", BY_NAME.values(), ids=BY_NAME)
def test_descriptions_are_whole_sentences_and_say_what_to_do(event):
    assert event.meaning.endswith(".") and event.meaning[0].isupper()
    assert event.action.endswith(".")
    named = set(re.findall(r"{(\w+)}", event.console))
    assert named <= event.fields.keys() | COMMON_FIELDS.keys()


def test_console_tells_what_happened_in_a_sentence():
    record = {"t": 1.0, "what": "fault", "reason": "node n1 is silent", "ranks": [2, 3]}
    assert console_line(record) == "FAULT: node n1 is silent (lost ranks: [2, 3])"
    assert console_line({"t": 1.0, "what": "fenced"}) is None


def test_console_tells_once_what_every_rank_reports():
    assert console_line({"what": "unprotected", "rank": 1}) is None
    assert "UNPROTECTED" in str(console_line({"what": "unprotected", "rank": 0}))


def test_console_tells_the_same_finding_of_several_ranks_once():
    console = ConsoleLines()
    found = [{"what": "inexact_script", "rank": rank, "found": "It does.", "remedy": "Do not."} for rank in range(3)]
    assert [console.line(record) for record in found] == ["NOT EXACT: It does. Do not.", None, None]
    assert console.line(found[0] | {"found": "It does more."}) == "NOT EXACT: It does more. Do not."


def test_console_stays_silent_about_events_of_another_version():
    assert console_line({"what": "of_the_future"}) is None
