"""The walks of docs/architecture.md, as lists of functions."""

from __future__ import annotations

import functools
import importlib
import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/architecture.md"
DIAGRAM = re.compile(r"^### (?P<title>.+?)\n.*?^```mermaid\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
ARROW = re.compile(r"^\s*\w+\s*-{1,2}>>\s*\w+\s*: (?P<label>.*)$", re.MULTILINE)
NAME = re.compile(r"(?P<path>[\w/]+)\.py::(?P<function>[\w.]+)")


@dataclass(frozen=True, slots=True)
class Function:
    module: str
    name: str

    def exists(self) -> bool:
        try:
            functools.reduce(getattr, self.name.split("."), importlib.import_module(self.module))
        except (ImportError, AttributeError):
            return False
        return True

    def __str__(self) -> str:
        return f"{self.module} {self.name}"


def walks() -> dict[str, list[Function]]:
    text = PAGE.read_text(encoding="utf-8")
    return {
        diagram["title"]: [_function(arrow["label"]) for arrow in ARROW.finditer(diagram["text"])]
        for diagram in DIAGRAM.finditer(text)
    }


def _function(label: str) -> Function:
    found = NAME.findall(label)
    assert len(found) == 1, f"the arrow {label!r} does not name one function"
    path, function = found[0]
    return Function("deadpool." + path.replace("/", "."), function)
