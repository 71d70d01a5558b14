"""A process runs the user's script once. A spare that is seated at another rank than it rehearsed is a fresh process.

And what DeadPool says in a process never raises there.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stage import EVERY_STEP, Stage, run_script_unprotected
from torchrun import torchrun

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.results import Results, differences

ONCE = Path(__file__).with_name("once_script.py")
STRICT = Path(__file__).with_name("strict_script.py")
PACKAGE = """
import os, threading

class State:
    # One for the process, whoever makes one, as accelerate's PartialState is. Kept where no import is repeated.
    def __init__(self):
        self.__dict__ = threading.__dict__.setdefault("_remembered", {})
        self.__dict__.setdefault("rank", int(os.environ["RANK"]))
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site-packages"
    (folder / "remembering").mkdir(parents=True)
    (folder / "remembering" / "__init__.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    return folder


def make_stage(folder: Path, script: Path, scene: str, fork_server: SharedForkServer | None, **config: int) -> Stage:
    settings = JobConfig(nodes=2, **{"spares": 1, **EVERY_STEP, **config}).checked()  # type: ignore[arg-type]
    return Stage(settings, "", scene, folder / "job", fork_server, script=script, arguments=[])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "preload",
    [
        pytest.param((), id="imported by the script"),
        pytest.param(("remembering",), id="preloaded", marks=pytest.mark.thorough),
    ],
)
def test_spare_is_seated_at_another_rank_than_it_rehearsed(tmp_path, installed, preload):
    torchrun(2, tmp_path, str(ONCE), "--out", str(tmp_path / "undisturbed"))
    stage = make_stage(tmp_path, ONCE, "wait@4:1", None)
    stage.trial.job.preload = preload

    def during(_):
        stage.trial.await_event("rehearsed")
        stage.kill_node_at_gate("n1", 4)

    results = stage.trial.run(during)
    assert [event["rank"] for event in stage.events("rehearsed")][:1] == [0]
    assert stage.seats() == ["n0", "n2"]
    assert differences(Results.read(tmp_path / "undisturbed"), results) == []
    for rank in (0, 1):
        left = json.loads((stage.trial.out / f"left-{rank}").read_text())
        assert left == {"handlers": [rank], "threads": [f"the script's, rank {rank}"]}
    assert not stage.events("trainer_lost"), "the rehearsal of rank 0 has not failed, it was not needed"


def test_script_to_which_every_warning_is_an_error(tmp_path, fork_server):
    undisturbed = run_script_unprotected(STRICT, [], 2, tmp_path / "undisturbed")
    stage = make_stage(tmp_path, STRICT, "wait@104:0 wait@204:1", fork_server)

    def during(_):
        """Both ranks have the group of step 4."""
        stage.trial.await_event("rehearsed")
        stage.await_gate(104)
        stage.await_gate(204)
        stage.await_committed(4)
        stage.kill_node_at_gate("n1", 204, committed=False)
        stage.open_gate(104)

    results = stage.trial.run(during)
    assert differences(undisturbed, results) == []
    assert len(stage.events("fault")) == 1
    said = "".join(path.read_text() for path in stage.trial.job.run_dir.logs.glob("*.log"))
    assert "UserWarning" not in said and "Traceback" not in said
    assert stage.events("groups_forgotten") and "deadpool: process groups" in said
