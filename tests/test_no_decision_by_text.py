"""No decision looks into a sentence: what follows from a refusal, a failure or a reason follows from a value.

A sentence is known here by its name (`reason`, `failure`, str(error), ...), or by being a constant with a blank in it.
Found is whoever searches in it, cuts it up, or compares it with a constant. Words of other programs are another matter:
whoever has nothing else to go by is named in FOREIGN, and why.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

import pytest
from test_layers import modules, source_of

SENTENCES = {
    "complaint", "error", "errors", "failure", "failures", "output", "problem", "reason", "reasons", "refusal", "said",
    "sentence", "untenable", "verdict", "why",
}  # fmt: skip
"""Names of variables, attributes, functions and keys that hold sentences for people."""
SEARCHES = {"startswith", "endswith", "find", "rfind", "index", "partition", "rpartition", "removeprefix",
            "removesuffix", "split", "rsplit", "count"}  # fmt: skip
FOREIGN = {
    "clusters.slurm.client": 4,  # squeue and scontrol tell an unknown job from another failure in words only
    "clusters.slurm.waiting": 1,  # the reasons of squeue, some of which are followed by a name
    "cli.words": 1,  # click's words, or pydantic's: their errors have another class in each version of typer
    "lab.chaos.faults.nodes": 1,  # a launcher is judged by what it has said to a person
    "lab.strangers.protected": 1,  # so is a script, which has to be ended by an error of ours
    "lab.strangers.trial": 1,  # and with the right words
    "trainer.process.environment": 1,  # torch's advice is cut off, and nothing follows from it
    "trainer.process.torch_check": 2,  # likewise
}
"""How often each module does so. These numbers can only fall."""


def decisions(source: str) -> list[str]:
    """What a source does with sentences, by line."""
    tree = ast.parse(source)
    return [f"line {node.lineno}: {ast.unparse(node)}" for node in ast.walk(tree) if _decides(node)]  # type: ignore[attr-defined]


def _decides(node: ast.AST) -> bool:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=rights):
            pairs = zip([left, *rights], ops, rights, strict=False)
            return any(_compares(one, op, other) for one, op, other in pairs)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=attr), args=[_, searched, *_]):
            return attr != "sub" and _is_sentence(searched)
        case ast.Call(func=ast.Attribute(value=owner, attr="search" | "match" | "fullmatch"), args=[searched]):
            return _is_sentence(searched) and not _is_sentence(owner)
        case ast.Call(func=ast.Attribute(value=owner, attr=attr), args=[_, *_] as arguments) if attr in SEARCHES:
            return _is_sentence(owner) or any(_is_words(each) for each in arguments)
        case ast.Match(subject=subject, cases=cases):
            return _is_sentence(subject) and any(_is_text_pattern(case.pattern) for case in cases)
        case ast.Subscript(slice=key, ctx=ast.Load()):
            return _is_words(key)
        case _:
            return False


def _compares(one: ast.expr, op: ast.cmpop, other: ast.expr) -> bool:
    match op:
        case ast.In() | ast.NotIn():
            several = isinstance(other, ast.Tuple | ast.List | ast.Set)
            in_constants = several and any(_is_words(each) for each in other.elts)  # type: ignore[attr-defined]
            return _is_sentence(other) or _is_words(one) or in_constants
        case ast.Eq() | ast.NotEq():
            known = (one, other) if _is_sentence(one) else (other, one)
            return _is_words(one) or _is_words(other) or (_is_sentence(known[0]) and _is_text(known[1]))
        case _:
            return False


def _is_sentence(node: ast.expr) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in SENTENCES
        case ast.Subscript(slice=ast.Constant(value=str(key))):
            return key in SENTENCES
        case ast.Call(func=ast.Name(id="str" | "repr"), args=[inner]):
            return _is_sentence(inner)
        case ast.Call(func=ast.Attribute(value=owner, attr=method), args=arguments):
            return method in SENTENCES or (method != "get" and _is_sentence(owner)) or _is_key(arguments[:1], method)
        case _:
            return False


def _is_key(arguments: list[ast.expr], method: str) -> bool:
    """event.get("reason")"""
    match arguments:
        case [ast.Constant(value=str(key))]:
            return method == "get" and key in SENTENCES
        case _:
            return False


def _is_text(node: ast.expr) -> bool:
    """A constant text, or a name for one. An empty one only asks whether there is a sentence."""
    match node:
        case ast.Constant(value=str(text)):
            return bool(text)
        case ast.Name(id=name):
            return name.isupper()
        case _:
            return False


def _is_words(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=str(text)):
            return len(text.split()) > 1 and text.strip("[] ").replace(" ", "").isalpha()
        case _:
            return False


def _is_text_pattern(pattern: ast.pattern) -> bool:
    match pattern:
        case ast.MatchValue(value=value):
            return _is_text(value)
        case ast.MatchOr(patterns=patterns):
            return any(_is_text_pattern(each) for each in patterns)
        case _:
            return False


def _everywhere() -> Iterator[tuple[str, list[str]]]:
    for module in modules():
        if found := decisions(source_of(module).read_text(encoding="utf-8")):
            yield module, found


def test_no_decision_looks_into_a_sentence():
    found = dict(_everywhere())
    unknown = {module: lines for module, lines in found.items() if len(lines) > FOREIGN.get(module, 0)}
    assert not unknown, unknown


def test_what_is_foreign_is_still_there():
    counts = Counter({module: len(lines) for module, lines in _everywhere()})
    assert {module: counts[module] for module in FOREIGN} == FOREIGN


@pytest.mark.parametrize(
    "source",
    [
        "ALREADY_STORED in failure",
        "'does not start' in str(error)",
        "reason.startswith(('script:', 'device:'))",
        "checkpoint not in lost.reason",
        "'no source gave' in detail['reason']",
        "ended.reason == COMPLETED",
        "what, _, do = str(error).rpartition(': ')",
        "name == 'every copy lost'",
        "kinds['every copy lost']",
        "re.search('no space', event.get('reason'))",
        "_LOST.search(str(error))",
        "match reason:\n    case 'no free slot': pass",
    ],
)
def test_decision_is_found(source):
    assert decisions(source)


@pytest.mark.parametrize(
    "source",
    ["rank in lost.ranks", "failure.refusal is Refusal.NO_ROOM", "reason == ''", "if reason: pass", "f'{reason}; so'",
     "'key' in record", "line.partition('=')", "kind == 'fault'"],
)  # fmt: skip
def test_other_questions_are_not(source):
    assert not decisions(source)
