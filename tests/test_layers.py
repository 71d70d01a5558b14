"""Holds which room may import which, where torch may be imported, and which names are public. Rooms of the lab
begin with `lab.`"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch  # noqa: F401  # opens files for good on its first import, which no single test is to answer for
from waiting import LIMIT_S

import deadpool
import deadpool_lab

ROOT = Path(deadpool.__file__).parent
LAB = Path(deadpool_lab.__file__).parent
DOCS = Path(__file__).parent.parent / "docs"

PUBLIC: dict[str, list[str]] = {
    "deadpool": [
        "Adapter",
        "ConfigError",
        "DeadPoolError",
        "Job",
        "JobFailed",
        "JobRank",
        "StateError",
        "Step",
        "first_start",
        "join",
        "protect",
    ],
    "deadpool.integrations.accelerate": ["endless", "protect"],
    "deadpool.integrations.deepspeed": ["protect"],
    "deadpool.integrations.lightning": ["protect"],
    "deadpool.integrations.megatron": ["protect", "protect_pretrain"],
    "deadpool.integrations.torchtitan": ["protect"],
    "deadpool.integrations.transformers": ["protect"],
    "deadpool.ray": ["run"],
    "deadpool.journal": ["Entry", "Jsonl", "Run", "Sink", "TensorBoard", "WandB"],
}
"""All that users may import. A name that is added here is a promise, and needs a place in docs/."""

BASE = {"errors"}
SHARED = {"protocol", "config", "events", "errors"}
TORCH_FREE_SNAPSHOT = {"snapshot.arena", "snapshot.erasure", "snapshot.transfer"}
TORCH_FREE_DURABLE = {f"durable.{module}" for module in ("manifest", "pieces", "rate", "reading", "store", "tasks")}

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "host": {"errors", "protocol.health"},
    "events": BASE | {"host.private_files"},
    "config": BASE | {"events.types", "protocol.schemes", "protocol.identity"},
    "protocol": {"errors", "events.event"},
    "wire": {"", "protocol", "config.environment", "errors"},
    "journal": BASE | {"config.environment", "host.notes"},
    "control": SHARED | {"wire", "host", "views.metrics"} | TORCH_FREE_SNAPSHOT | TORCH_FREE_DURABLE,
    "doctor": {"", "control", "errors", "host", "protocol", "wire"},
    "clusters": SHARED | {"", "control", "doctor", "host", "wire"},
    "sizing": {"errors", "events.story", "protocol.schemes", "views.metrics", "views.picture"},
    "views": {"", "errors", "events", "journal", "protocol.identity", "sizing"},
    "snapshot": {"errors", "host.child_processes", "host.host_memory", "host.rdma", "protocol"}
    | {f"wire.{module}" for module in ("credentials", "handshake", "deadline", "listener")},
    "durable": {"protocol", "snapshot", "errors"},
    "backend": BASE,
    "trainer": SHARED | {"wire", "snapshot", "backend", "host", "journal"},
    "integrations": {"errors", "host.notes", "snapshot", "trainer"},
    "demo": {"", "config", "control", "events", "errors"},
    "ray": {"clusters.ray"},
    "__init__": {"errors", "trainer"},
    "lab": set(),
    "lab.sim": SHARED,
    "lab.workload": {"", "demo", "errors", "protocol", "snapshot.arena"},
    "lab.chaos": SHARED | {"control", "demo", "host", "lab.workload", "snapshot.arena", "trainer.current"},
    "lab.corruption": SHARED | {"control", "demo", "lab.workload"},
    "lab.strangers": SHARED | {"control", "host", "lab.workload", "lab.chaos"},
    "lab.cli": SHARED | {"cli", "control", "sizing", "wire.codec", "lab"},
}
"""Rooms, or parts of them. Every room may import itself; cli may import anything of this package, and finds the lab by
its entry points only."""

SHELLS = {"control.coding": "coding", "control.durable": "durable", "snapshot.erasure": "coding"}
"""What a feature adds to the processes around the cores, and which one that is."""

RUNNING = {"backend", "control", "protocol", "snapshot", "trainer", "wire"}
"""What an optional feature enters through seams only."""

MOST_ROOMS, MOST_LOOSE_MODULES, MOST_MODULES_IN_A_FOLDER = 18, 3, 20

MOST_LINES = 400

TORCH_IN_WORKLOAD = {"demo.gpt", "demo.train"} | {
    f"lab.workload.{module}"
    for module in ("average", "device", "layouts", "loader", "master_weights", "plain_torch", "train")
}
TORCH_IN_DURABLE = {f"durable.{module}" for module in ("export", "metadata", "part_file", "writer")}
TORCH_ALLOWED = {"snapshot", "backend", "trainer", "integrations", "lab.strangers.torchrun"}
TORCH_ALLOWED |= TORCH_IN_WORKLOAD | TORCH_IN_DURABLE
PROTOCOL_PACKAGES = {"msgspec"}
"""protocol is written with the standard library and msgspec, whose Structs are its messages and their values."""
PROTOCOL_FORBIDDEN = {"asyncio", "os", "random", "socket", "threading", "time", "uuid"}


def modules() -> list[str]:
    """As dotted names below `deadpool`, and those of the lab below `lab`."""
    named = [(("",), ROOT, path) for path in sorted(ROOT.rglob("*.py"))]
    named += [(("lab",), LAB, path) for path in sorted(LAB.rglob("*.py"))]
    parts = ((*root, *path.relative_to(folder).with_suffix("").parts) for root, folder, path in named)
    return [".".join(each).removeprefix(".").removesuffix(".__init__") for each in parts]


def source_of(module: str) -> Path:
    room, _, rest = module.partition(".")
    path = LAB.joinpath(*rest.split(".")) if room == "lab" else ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def imports(module: str) -> frozenset[str]:
    """Every import, wherever it stands: inside functions and for type checkers too."""
    return frozenset(_imports(ast.parse(source_of(module).read_text(encoding="utf-8")), module))


def _imports(tree: ast.Module, module: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{module}: imports are absolute"
            yield from _imported_from(node.module, [alias.name for alias in node.names])


def _imported_from(package: str, names: list[str]) -> Iterator[str]:
    """`from deadpool.protocol import messages` imports a module, `from deadpool.events.event import Event` a name."""
    top, *rest = package.split(".")
    path = {"deadpool": ROOT, "deadpool_lab": LAB}.get(top, ROOT.parent / top).joinpath(*rest)
    for name in names:
        is_module = (path / f"{name}.py").exists() or (path / name).is_dir()
        yield f"{package}.{name}" if is_module else package


def within(module: str, allowed: set[str]) -> bool:
    return any(module == each or (each and module.startswith(each + ".")) for each in allowed)


def room_of(module: str) -> str:
    first, *rest = module.split(".")
    return f"lab.{rest[0]}" if first == "lab" and rest else first


def imports_by_module(is_meant: Callable[[str], bool]) -> Iterator[tuple[str, frozenset[str]]]:
    """What each module that is meant imports. It is an error if none is meant: then nothing would be looked at."""
    meant = [module for module in modules() if is_meant(module)]
    assert meant
    return ((module, imports(module)) for module in meant)


def ours(imported: frozenset[str]) -> list[str]:
    """Of what is imported, what is ours, as dotted names below `deadpool`, and those of the lab below `lab`."""
    names = {name for name in imported if name.split(".")[0] in ("deadpool", "deadpool_lab")}
    return sorted(name.replace("deadpool_lab", "lab", 1).removeprefix("deadpool").removeprefix(".") for name in names)


def test_modules_import_only_what_their_rooms_may():
    assert [
        f"{module} imports {name}"
        for module, imported in imports_by_module(lambda module: room_of(module) != "cli")
        for name in ours(imported)
        if not within(name, MAY_IMPORT[room_of(module)] | {room_of(module)})
    ] == []


def test_the_tree_shows_what_there_is():
    """A new owner sees the rooms at a glance, and no folder is a list that nobody reads to its end."""
    rooms = [path for path in ROOT.iterdir() if (path / "__init__.py").exists()]
    loose = [path.name for path in ROOT.glob("*.py")]
    folders = {path.parent for root in (ROOT, LAB) for path in root.rglob("*.py")}
    sizes = {folder: sum(path.name != "__init__.py" for path in folder.glob("*.py")) for folder in folders}
    assert len(rooms) <= MOST_ROOMS
    assert len(loose) <= MOST_LOOSE_MODULES, loose
    assert {str(folder) for folder, size in sizes.items() if size > MOST_MODULES_IN_A_FOLDER} == set()


def test_a_module_can_be_read_at_once():
    lengths = {module: len(source_of(module).read_text(encoding="utf-8").splitlines()) for module in modules()}
    assert {module: length for module, length in lengths.items() if length > MOST_LINES} == {}


def test_torch_is_imported_only_where_it_may_be():
    users = {module for module in modules() if any(room_of(name) == "torch" for name in imports(module))}
    assert [module for module in sorted(users) if not within(module, TORCH_ALLOWED)] == []
    assert [module for module in sorted(users) if within(module, TORCH_FREE_SNAPSHOT)] == []


def test_the_agents_half_of_snapshot_does_not_lean_on_the_other():
    assert [
        f"{module} imports {name}"
        for module, imported in imports_by_module(lambda module: within(module, TORCH_FREE_SNAPSHOT))
        for name in ours(imported)
        if room_of(name) == "snapshot" and not within(name, TORCH_FREE_SNAPSHOT)
    ] == []


def test_decisions_have_no_way_to_the_world():
    assert [
        f"{module} imports {name}"
        for module, imported in imports_by_module(is_decision)
        for name in sorted(imported)
        if room_of(name) in PROTOCOL_FORBIDDEN
    ] == []


def test_decisions_need_no_package_but_the_one_of_their_messages():
    known = {"deadpool", *sys.stdlib_module_names, *PROTOCOL_PACKAGES}
    assert [
        f"{module} imports {name}"
        for module, imported in imports_by_module(is_decision)
        for name in sorted(imported)
        if room_of(name) not in known
    ] == []


def test_cores_know_each_other_by_messages_only():
    assert [
        f"{module} imports {name}"
        for module, imported in imports_by_module(lambda module: is_decision(module) and not is_registry(module))
        for name in ours(imported)
        if within(name, {"protocol.coordinator", "protocol.agent"} - {f"protocol.{core_of(module)}"})
    ] == []


def core_of(module: str) -> str:
    """`protocol.agent.orders` and `protocol.features.shrink.agent` are parts of the agent."""
    _, *parts = module.split(".")
    return parts[2] if parts[0] == "features" and len(parts) > 2 else parts[0]


def is_registry(module: str) -> bool:
    """What brings the parts of a feature together, and all features to the cores."""
    registries = {"protocol.features.registry", "control.shell_registry"}
    return within(module, registries) or module.rpartition(".")[2] in ("feature", "shell")


def test_cores_know_features_by_the_registry_and_features_do_not_know_each_other():
    assert [
        f"{module} imports {name}"
        for module, imported in imports_by_module(lambda module: room_of(module) in RUNNING and not is_registry(module))
        for name in ours(imported)
        if within(name, {"protocol.features", *SHELLS}) and not may_know(module, name)
    ] == []


def may_know(module: str, name: str) -> bool:
    return is_registry(name) or feature_of(module) == feature_of(name)


def feature_of(module: str) -> str | None:
    parts = module.split(".")
    if parts[:2] == ["protocol", "features"] and len(parts) > 2:
        return parts[2]
    return next((name for shell, name in SHELLS.items() if within(module, {shell})), None)


def is_decision(module: str) -> bool:
    return room_of(module) == "protocol"


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_those_listed(module):
    if module.endswith(".megatron"):
        pytest.importorskip("megatron.core")  # scripts/frameworks installs it, the check does not
    if ".integrations." in module:
        pytest.importorskip(module.rpartition(".")[2], reason="the library is not installed")
    exported = importlib.import_module(module)
    assert sorted(exported.__all__) == PUBLIC[module]
    assert [name for name in PUBLIC[module] if not hasattr(exported, name)] == []


def test_public_names_are_documented():
    words = {word for page in DOCS.rglob("*.md") for word in re.findall(r"[\w.]+", page.read_text(encoding="utf-8"))}
    names = [f"{module}.{name}" for module, listed in PUBLIC.items() for name in listed]
    assert [name for name in names if name not in words] == []


def test_coordinator_agent_and_commands_start_without_torch():
    rooms = ("cli", "clusters", "control", "doctor", "views", "journal", "protocol", "ray", "wire", "sizing")
    rooms = (*rooms, "lab.chaos", "lab.sim", "lab.strangers", "lab.corruption", "lab.cli")
    start = sorted(m for m in modules() if room_of(m) in rooms)
    start.remove("clusters.kubernetes.operator.cluster")  # it needs lightkube
    start.remove("lab.chaos.gated")
    start.remove("lab.chaos.script")
    start.remove("lab.strangers.torchrun")
    start += ["demo.trial", "demo.trial", "lab.workload.run", "lab.workload.layouts"]
    lines = [f"import deadpool.{module}".replace("deadpool.lab", "deadpool_lab") for module in start]
    lines += ["import sys", "sys.exit('torch' in sys.modules)"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], timeout=LIMIT_S)
    assert done.returncode == 0


def test_what_benchmarks_and_examples_import_is_there():
    """The check runs only some of them, and a benchmark that nobody has run for a month is needed most."""
    files = [path for folder in ("benchmarks", "examples") for path in (DOCS.parent / folder).glob("*.py")]
    named = {
        (node.module, alias.name)
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("deadpool", "deadpool_lab")
        for alias in node.names
        if ".integrations." not in (node.module or "")  # they need their libraries
    }
    missing = [f"{module}.{name}" for module, name in sorted(named) if not _is_there(module, name)]
    assert named and missing == []


def _is_there(module: str, name: str) -> bool:
    owner = importlib.import_module(module)
    is_package = hasattr(owner, "__path__")
    return hasattr(owner, name) or (is_package and importlib.util.find_spec(f"{module}.{name}") is not None)
