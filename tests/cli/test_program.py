"""What `deadpool run` runs, in the habits of torchrun: a script, a module, a command, as python would run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import COMMAND, deadpool
from waiting import LIMIT_S

TELL = """
import json, os, pickle, sys
class Ours: pass
main = sys.modules["__main__"]
found = {
    "argv": sys.argv, "path0": sys.path[0], "name": __name__, "package": __package__,
    "spec": getattr(__spec__, "name", None), "file": __file__, "main": main.__dict__ is globals(),
    "pickled": pickle.loads(pickle.dumps(Ours())).__class__ is Ours, "doc": __doc__,
}
print("FOUND", json.dumps(found), flush=True)
"""
SPAWNING = """
import multiprocessing
import torch
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return torch.tensor(index * index)

def work(index, queue):
    queue.put(("spawned", index, __name__))

if __name__ == "__main__":
    loader = DataLoader(Squares(), num_workers=1, multiprocessing_context="spawn")
    print("LOADED", [int(each) for each in loader], flush=True)
    queue = multiprocessing.get_context("spawn").Queue()
    torch.multiprocessing.spawn(work, args=(queue,), nprocs=1)
    print("SPAWNED", queue.get(timeout=300), flush=True)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a module that imports its sibling, in the folder that commands are given in."""
    package = tmp_path / "project" / "pack" / "deep"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "sibling.py").write_text("WORD = 'sibling'\n")
    (package / "train.py").write_text("'''Its docstring.'''\nfrom .sibling import WORD\n" + TELL)
    (package / "__main__.py").write_text(TELL)
    (package / "script.py").write_text("import sibling\n" + TELL)
    (package / "spawning.py").write_text(SPAWNING)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def said(printed: str, word: str) -> str:
    lines = [line.partition(f"{word} ")[2] for line in printed.splitlines() if f"{word} " in line]
    assert len(lines) == 1, printed
    return lines[0]


def under_python(*words: str) -> dict[str, object]:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return dict(json.loads(said(done.stdout, "FOUND")))


@pytest.mark.parametrize(
    ("ours", "pythons"),
    [
        (["-m", "pack.deep.train", "-x", "--lr", "1"], ["-m", "pack.deep.train", "-x", "--lr", "1"]),
        pytest.param(["--module", "pack.deep", "one"], ["-m", "pack.deep", "one"], marks=pytest.mark.thorough),
        pytest.param(["--", "pack/deep/script.py", "-m"], ["pack/deep/script.py", "-m"], marks=pytest.mark.thorough),
        pytest.param(
            ["--no-python", "PYTHON", "-u", "-m", "pack.deep.train"],
            ["-m", "pack.deep.train"],
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            ["--no-python", "PYTHON", "pack/deep/script.py", "a b"],
            ["pack/deep/script.py", "a b"],
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["module", "package", "script in a package", "python -m", "python script"],
)
def test_runs_as_python_does(project, ours, pythons):
    ours = [sys.executable if word == "PYTHON" else word for word in ours]
    done = deadpool("run", "--run-dir", project / "run", *ours)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(said(done.stdout, "FOUND")) == under_python(*pythons)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words",
    [pytest.param(["-m", "pack.deep.spawning"], id="module"), pytest.param(["pack/deep/spawning.py"], id="script")],
)
def test_spawned_processes_find_the_main_module(project, words):
    """Workers of a loader and of torch.multiprocessing import it anew, and unpickle what it defines."""
    done = deadpool("run", "--run-dir", project / "run", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert said(done.stdout, "LOADED") == "[0, 1, 4, 9]"
    assert said(done.stdout, "SPAWNED") == "('spawned', 0, '__mp_main__')"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-m", "absent.train"], "module='absent.train' cannot be found: 'absent' is neither in"),
        (
            ["--no-python", "bash", "train.sh"],
            "--no-python bash cannot be protected: DeadPool works inside of python processes only",
        ),
        (["--no-python", "PYTHON", "-c", "pass"], "-c cannot be used: trainers are forked from an interpreter"),
        (["--no-python", "PYTHON"], "names nothing to run"),
        (["--no-python", "-m", "pack.deep"], "--module and --no-python cannot be used together"),
        pytest.param(
            ["--preload", "nowhere_to_be_found", "pack/deep/script.py"],
            "preload='nowhere_to_be_found' cannot be imported",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_refused_in_words(project, words, message):
    words = [sys.executable if word == "PYTHON" else word for word in words]
    done = deadpool("run", "--run-dir", project / "run", *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert "preload" in message or "Traceback" not in done.stderr


@pytest.mark.thorough
def test_agent_that_cannot_preload_says_so(project, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s" * 32)
    secret.chmod(0o600)
    environment = {**os.environ, "DEADPOOL_SECRET_FILE": str(secret)}
    coordinator = subprocess.Popen(
        [*COMMAND, "coordinator", "--nodes", "1", "--run-dir", str(tmp_path / "run")],
        env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert coordinator.stdout is not None
    try:
        place = (
            next(line for line in coordinator.stdout if "listens on" in line).partition("listens on ")[2].split(",")[0]
        )
        agent = [*COMMAND, "agent", "--join", place, "--preload", "nowhere_to_be_found", "pack/deep/script.py"]
        done = subprocess.run(agent, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    finally:
        coordinator.kill()
        coordinator.communicate()
    assert done.returncode == 1
    assert "ends: preload='nowhere_to_be_found' cannot be imported: ModuleNotFoundError" in done.stdout
