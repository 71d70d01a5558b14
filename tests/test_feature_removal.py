"""The package without an optional feature: its folders and its lines in the registries are gone, and the rest is whole.

What is left imports, and the cores still recover: a few of their own tests run against that package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_layers import LAB, ROOT, imports, modules, ours, room_of, within
from waiting import LIMIT_S

TESTS = Path(__file__).parent
REGISTRIES = ("protocol/features/registry.py", "control/shell_registry.py")
FOLDERS = {
    "adaptation": ("protocol/features/adaptation",),
    "coding": ("protocol/features/coding", "control/coding", "snapshot/erasure"),
    "compilation": ("protocol/features/compilation", "control/compilation"),
    "corruption": ("protocol/features/corruption",),
    "durable": ("protocol/features/durable", "control/durable"),
    "leases": ("protocol/features/leases", "clusters/pool"),  # the second is the shell of the first
    "shrink": ("protocol/features/shrink",),
}
WITHOUT_TORCH = ("cli", "clusters", "config", "control", "events", "host", "protocol", "views", "wire")
NEEDS_MORE = {"clusters.kubernetes.operator.cluster"}  # lightkube
STILL_PASS = ("test_planner.py", "test_quorum.py", "test_returns.py", "test_trainer_core.py", "test_transcripts.py")
TRANSCRIPTS = "not test_transcript or second_loss or job_starts or agent_fence or takeover or drain_some_rank"


@pytest.mark.parametrize("name", FOLDERS)
def test_the_rest_imports_and_recovers(name, tmp_path):
    removed = tuple(folder.replace("/", ".") for folder in FOLDERS[name])
    left = [module for module in modules() if room_of(module) in WITHOUT_TORCH and not within(module, set(removed))]
    _copy_without(name, tmp_path)
    script = "\n".join(f"import deadpool.{module}".removesuffix(".") for module in left if module not in NEEDS_MORE)
    _run(
        tmp_path, "-c", f"{script}\nimport sys; assert not [each for each in sys.modules if 'features.{name}' in each]"
    )
    tests = [str(TESTS / "protocol" / test) for test in STILL_PASS]
    _run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", TRANSCRIPTS, *tests)


REFUSED = """
from deadpool.cli.start.coordinator import check_installed
from deadpool.config.resolution import resolve
from deadpool.errors import ConfigError
for given in ({"nodes": 8, "protect": "rs(4,1)"}, {"nodes": 8, "protect": "auto", "protect_at_most": "rs(4,1)"}):
    try:
        check_installed(resolve(given, environment={}, settled=True))
    except ConfigError as error:
        assert "rs(4,1) needs coded memory, which is not installed: give copies=N" in str(error), error
    else:
        raise AssertionError(given)
"""


def test_job_that_asks_for_parity_is_refused_in_a_sentence_without_coding(tmp_path):
    _copy_without("coding", tmp_path)
    _run(tmp_path, "-c", REFUSED)


def _copy_without(name: str, folder: Path) -> None:
    shutil.copytree(ROOT, folder / "deadpool", ignore=shutil.ignore_patterns("__pycache__"))
    for each in FOLDERS[name]:
        shutil.rmtree(folder / "deadpool" / each)
    for each in registries_of(name):
        registry = folder / "deadpool" / each
        lines = registry.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if name not in line.lower()]
        assert len(lines) - len(kept) == 2, "an import and an entry"
        registry.write_text("".join(kept), encoding="utf-8")


def registries_of(name: str) -> list[str]:
    """A registry lies beside the folders of its features."""
    beside = {str(Path(folder).parent) for folder in FOLDERS[name]}
    return [registry for registry in REGISTRIES if str(Path(registry).parent) in beside]


def _run(folder: Path, *arguments: str) -> None:
    path = os.pathsep.join([str(folder), str(LAB.parent)])
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("name", FOLDERS)
def test_nothing_else_imports_it(name):
    """Also where torch is needed, which the other test does not import."""
    removed = {folder.replace("/", ".") for folder in FOLDERS[name]}
    users = {
        module
        for module in modules()
        if not room_of(module).startswith("lab") and not within(module, removed)
        for imported in ours(imports(module))
        if within(imported, removed)
    }
    late = {"cli.engines.pool"}  # it imports when it is called
    assert users - late == {each.removesuffix(".py").replace("/", ".") for each in registries_of(name)}
