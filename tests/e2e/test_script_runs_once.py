"""A process runs the user's script once. A spare that is seated at another rank than it rehearsed is a fresh process.

And what DeadPool says in a process never raises there.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gated_job import EVERY_STEP, GatedJob, run_script_unprotected
from torchrun import torchrun

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import Results, differences

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


def make_gated_job(
    folder: Path, script: Path, acts: str, fork_server: SharedForkServer | None, **config: int
) -> GatedJob:
    settings = JobConfig(nodes=2, **{"spares": 1, **EVERY_STEP, **config}).checked()  # type: ignore[arg-type]
    return GatedJob(settings, "", acts, folder / "job", fork_server, script=script, arguments=[])  # type: ignore[arg-type]


@pytest.mark.thorough
@pytest.mark.parametrize("preload", [(), ("remembering",)], ids=["imported by the script", "preloaded"])
def test_spare_is_seated_at_another_rank_than_it_rehearsed(tmp_path, installed, preload):
    torchrun(2, tmp_path, str(ONCE), "--out", str(tmp_path / "undisturbed"))
    gated = make_gated_job(tmp_path, ONCE, "wait@4:1", None)
    gated.trial.job.preload = preload

    def during(_):
        gated.trial.await_event("rehearsed")
        gated.kill_node_at_gate("n1", 4)

    results = gated.trial.run(during)
    assert [event["rank"] for event in gated.events("rehearsed")][:1] == [0]
    assert gated.seats() == ["n0", "n2"]
    assert differences(Results.read(tmp_path / "undisturbed"), results) == []
    for rank in (0, 1):
        left = json.loads((gated.trial.out / f"left-{rank}").read_text())
        assert left == {"handlers": [rank], "threads": [f"the script's, rank {rank}"]}
    assert not gated.events("trainer_lost"), "the rehearsal of rank 0 has not failed, it was not needed"


def test_script_to_which_every_warning_is_an_error(tmp_path, fork_server):
    undisturbed = run_script_unprotected(STRICT, [], 2, tmp_path / "undisturbed")
    gated = make_gated_job(tmp_path, STRICT, "wait@104:0 wait@204:1", fork_server)

    def during(_):
        """Both ranks have the group of step 4."""
        gated.trial.await_event("rehearsed")
        gated.await_gate(104)
        gated.await_gate(204)
        gated.await_committed(4)
        gated.kill_node_at_gate("n1", 204, committed=False)
        gated.open_gate(104)

    results = gated.trial.run(during)
    assert differences(undisturbed, results) == []
    assert len(gated.events("fault")) == 1
    said = "".join(path.read_text() for path in gated.trial.job.run_dir.logs.glob("*.log"))
    assert "UserWarning" not in said and "Traceback" not in said
    assert gated.events("groups_forgotten") and "deadpool: process groups" in said
