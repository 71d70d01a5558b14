"""Nothing that comes from a socket can carry code: no module of ours can read a format that does.

torch's own object collectives pickle what scripts give them; their bytes pass through here unread (recorded_collectives.py).
"""

from __future__ import annotations

import ast
import builtins

import pytest
from test_layers import imports, modules, source_of

CODE_CARRYING = {
    "pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle", "yaml", "code",
    "codeop", "multiprocessing.connection", "xmlrpc",
}  # fmt: skip
CALLS = {"eval", "exec", "compile", "__import__"}
ATTRIBUTES = {("torch", "load"), ("np", "load"), ("numpy", "load"), ("pd", "read_pickle")}


def calls(source: str) -> set[str]:
    """Names that are called, and attributes of names: `eval`, `torch.load`."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(node.func.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add(f"{node.value.id}.{node.attr}")
    return found


EVALUATES = "wire.generated"  # while modules are imported, what wire.schema writes; nothing that was received
ALLOWED = {
    EVALUATES: {"eval"},
    "trainer.run_main": {"compile", "exec"},  # runs the user's script, as python would
}
FORBIDDEN_CALLS = CALLS | {f"{module}.{name}" for module, name in ATTRIBUTES}


@pytest.mark.parametrize("module", modules())
def test_no_module_reads_a_format_that_carries_code(module):
    assert {name for name in imports(module) if name in CODE_CARRYING or name.split(".")[0] in CODE_CARRYING} == set()
    found = calls(source_of(module).read_text(encoding="utf-8")) & FORBIDDEN_CALLS
    assert found == ALLOWED.get(module, set())


def test_only_the_schema_uses_what_evaluates():
    assert [module for module in modules() if f"deadpool.{EVALUATES}" in imports(module)] == ["wire.schema"]


@pytest.mark.parametrize("line", ["import pickle\npickle.loads(data)", "torch.load(file)", "eval(text)"])
def test_such_a_module_would_be_found(line):
    found = calls(line) & (FORBIDDEN_CALLS | {"pickle.loads"})
    assert found and all(hasattr(builtins, name) for name in CALLS)
