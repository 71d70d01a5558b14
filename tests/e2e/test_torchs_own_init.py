"""Scripts that call init_process_group themselves: protected if they call protect(), left alone if they do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from stage import EVERY_STEP, Stage, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.demo.results import differences
from deadpool.errors import JobFailed

PLAIN = Path(__file__).with_name("plain_torch_script.py")
INIT = Path(__file__).with_name("init_script.py")


def make_stage(folder, fork_server, script, *arguments, scene="", **config):
    settings = JobConfig(nodes=2, **{"spares": 1, **EVERY_STEP, **config}).checked()
    return Stage(settings, "", scene, folder / "job", fork_server, script=script, arguments=list(arguments))


def spare_trainers_are_up(stage: Stage) -> bool:
    """Both could begin the script, if there were anything to rehearse."""
    spares = [node for node in stage.status()["nodes"] if node["role"] == "spare"]  # none: it has not joined yet
    states = [trainer["state"] for spare in spares for trainer in spare["trainers"]]
    return len(states) == 2 and "starting" not in states


def test_script_that_never_asks_is_run_once_per_rank(tmp_path, fork_server):
    """A spare that ran it too would repeat its side effects and take the port of rank 0."""
    stage = make_stage(tmp_path, fork_server, PLAIN, rehearsals=2)

    def during(_):
        stage.trial.await_true(lambda: len(list(stage.trial.out.glob("began-*"))) >= 2, "both ranks")
        stage.trial.await_true(lambda: spare_trainers_are_up(stage), "the trainers of the spare")
        (stage.trial.out / "spare-is-up").touch()

    stage.trial.run(during)
    began = sorted(path.name.split("-")[1] for path in stage.trial.out.glob("began-*"))
    assert began == ["0", "1"]
    assert [(stage.trial.out / f"total-{rank}").read_text() for rank in (0, 1)] == ["4.0", "4.0"]
    assert not stage.events("rehearsed") and not stage.events("fault")
    assert sorted(event["rank"] for event in stage.events("unprotected")) == [0, 1]
    assert "UNPROTECTED: the script ended without ever calling protect()" in stage.trial.console()
    said = "".join(path.read_text() for path in stage.trial.job.run_dir.logs.glob("*.log"))
    assert said.count("deadpool: the script ended without calling protect()") == 1


@pytest.mark.parametrize(("way", "victim"), [("torch", 1), ("twice", 0), ("join", 1)])
def test_default_group_made_by_torchs_own_call(tmp_path, fork_server, way, victim):
    undisturbed = run_script_unprotected(INIT, ["--way", "torch"], 2, tmp_path / "undisturbed")
    stage = make_stage(tmp_path, fork_server, INIT, "--way", way, scene=f"wait@4:{victim}")

    def during(_):
        stage.trial.await_event("rehearsed")
        stage.kill_node_at_gate(f"n{victim}", 4)

    assert differences(undisturbed, stage.trial.run(during)) == []
    assert stage.seats()[victim] == "n2"
    assert not stage.events("unprotected")


def test_another_place_than_the_jobs_is_refused(tmp_path, fork_server):
    script = tmp_path / "script.py"
    script.write_text("import torch.distributed as dist\ndist.init_process_group('gloo', rank=0, world_size=7)\n")
    stage = make_stage(tmp_path, fork_server, script)
    with pytest.raises(JobFailed, match=r"\(world_size=7\) cannot be used: in this job world_size is 2"):
        stage.trial.run()
