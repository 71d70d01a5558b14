"""A class name means one thing in the whole package: who finds it in a trace need not ask which one is meant.

Where frameworks have a class with the same part in each, or an interface and what fulfils it have one name, they are
listed here with the reason.
"""

from __future__ import annotations

import ast
from collections import defaultdict

from test_layers import ROOT

SHARED = {
    "Job": "what a script sees of a job, and the job",
    "Step": "what a script sees of a step, and the step",
    "LoopState": "of a framework's own loop, in each integration",
    "ProtectedTrainer": "a framework's trainer, in each integration",
    "Quiet": "what keeps a framework silent in a rehearsal, in each integration",
    "Training": "a framework's own loop, in each integration",
}


def classes() -> dict[str, list[str]]:
    found = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_"):
                found[statement.name].append(path.relative_to(ROOT).as_posix())
    return found


def test_a_class_name_is_defined_once() -> None:
    found = {name: files for name, files in classes().items() if len(files) > 1}
    assert {name: files for name, files in found.items() if name not in SHARED} == {}


def test_every_exception_is_needed() -> None:
    found = classes()
    assert [name for name in SHARED if len(found[name]) < 2] == []
