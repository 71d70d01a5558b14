"""The page of what is private in torch and used here: complete as far as names show, and nothing that is gone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import deadpool
from deadpool.backend.torch_versions import TESTED

PACKAGE = Path(deadpool.__file__).parent
PAGE = (PACKAGE.parents[1] / "docs/torch-internals.md").read_text(encoding="utf-8")
OF_OTHERS = {
    *(
        "_current_frames",
        "_exit",
        "_run_exitfuncs",
        "_run_module_as_main",
        "_getframe",
        "_inst",
        "_lru_cache_wrapper",
    ),  # Python
    *("_bit_generator", "_rand"),  # numpy
    *("_computed", "_defaults", "_forward_cache", "_persistent", "_reductions"),  # torchmetrics
    *("_ZN4c10d12ProcessGroup17release_resourcesEv", "_ZTVN4c10d12ProcessGroupE"),  # release_resources() in C++
    *("_initialized", "_deadpool_original"),  # the end of a name, and one of ours
    *("_C", "_distributed_c10d", "_utils", "_fully_shard", "_fsdp_param"),  # modules in which these names are
}


def trees(*rooms: str) -> Iterator[ast.Module]:
    for room in rooms:
        for path in sorted((PACKAGE / room).rglob("*.py")):
            yield ast.parse(path.read_text(encoding="utf-8"))


def own_names() -> set[str]:
    """What the package defines itself."""
    own = set[str]()
    for node in (node for tree in trees(".") for node in ast.walk(tree)):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                own.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                own.add(name)
    return own


def private_names(*rooms: str) -> set[str]:
    """Attributes, imported names and strings that begin with an underscore and are none of ours."""
    used = set[str]()
    for node in (node for tree in trees(*rooms) for node in ast.walk(tree)):
        match node:
            case ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                used.add(name)
            case ast.ImportFrom(module=module, names=names):
                used |= {*str(module).split("."), *(each.name for each in names)}
    return {name for name in used if re.fullmatch(r"_[a-zA-Z]\w+", name)} - own_names() - OF_OTHERS


def test_private_names_that_are_used_are_on_the_page():
    assert private_names("backend", "trainer", "snapshot") - set(re.findall(r"\w+", PAGE)) == set()


def test_names_on_the_page_are_used():
    source = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    named = set(re.findall(r"\b_[a-zA-Z]\w+", PAGE))
    assert named and {name for name in named if name not in source} == set()


def test_page_says_of_each_version_what_was_run():
    assert tuple(re.findall(r"^\| (2\.\d+)\S* \|", PAGE, flags=re.MULTILINE)) == TESTED
