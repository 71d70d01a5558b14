"""Nothing that comes from a socket can carry code: no module of ours can read a format that does.

torch's own object collectives pickle what scripts give them; their bytes pass through here unread
(backend/recorded_collectives.py).
"""

from __future__ import annotations

import ast

import pytest
from test_layers import modules, source_of

CODE_CARRYING = {
    "pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle", "yaml", "code",
    "codeop", "multiprocessing.connection", "xmlrpc",
}  # fmt: skip
EVALUATING = {"eval", "exec", "compile", "__import__"}
UNPICKLING = {"torch.load", "np.load", "numpy.load", "pd.read_pickle", "pandas.read_pickle"}
ALLOWED = {
    "trainer.process.main": {"compile", "exec"},  # runs the user's script, as python would
    "clusters.kubernetes.charts": {"yaml"},  # reads the user's own file, by safe_load
    "durable.metadata": {"pickle"},  # writes the metadata of torch.distributed.checkpoint, and reads none
}


def findings(source: str) -> set[str]:
    """What a source imports or names that could make code out of data."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        found |= _imported(node) | _called(node)
    return found


def _imported(node: ast.AST) -> set[str]:
    names: set[str] = set()
    if isinstance(node, ast.Import):
        names = {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
        names = {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if _carries_code(name)} | (names & UNPICKLING)


def _carries_code(name: str) -> bool:
    """It is such a module, or something in one."""
    parts = name.split(".")
    return any(".".join(parts[:length]) in CODE_CARRYING for length in range(1, len(parts) + 1))


def _called(node: ast.AST) -> set[str]:
    """Evaluating functions where they are named at all: one that is passed on is called elsewhere."""
    match node:
        case ast.Name(id=name):
            return {name} & EVALUATING
        case ast.Attribute(value=ast.Name(id="builtins"), attr=name):
            return {name} & EVALUATING
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return {f"{owner}.{name}"} & UNPICKLING
        case _:
            return set()


def test_no_module_reads_a_format_that_carries_code():
    found = {module: findings(source_of(module).read_text(encoding="utf-8")) for module in modules()}
    assert {module: names for module, names in found.items() if names} == ALLOWED


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import pickle", "pickle"),
        ("import pickle as p\np.loads(data)", "pickle"),
        ("def f():\n    from pickle import loads", "pickle.loads"),
        ("from multiprocessing import connection", "multiprocessing.connection"),
        ("import multiprocessing.connection", "multiprocessing.connection"),
        ("import xmlrpc.client", "xmlrpc.client"),
        ("torch.load(file)", "torch.load"),
        ("from torch import load", "torch.load"),
        ("read = np.load", "np.load"),
        ("eval(text)", "eval"),
        ("run = exec", "exec"),
        ("builtins.eval(text)", "eval"),
        ("__import__(name)", "__import__"),
    ],
)
def test_a_module_that_reads_such_a_format_is_found(source, expected):
    assert findings(source) == {expected}


@pytest.mark.parametrize("source", ["import json", "re.compile(text)", "json.load(file)", "from os import path"])
def test_a_module_that_reads_none_is_not(source):
    assert findings(source) == set()
