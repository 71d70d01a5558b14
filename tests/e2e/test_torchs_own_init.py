"""Scripts that call init_process_group themselves: protected if they call protect(), left alone if they do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from gated_job import EVERY_STEP, GatedJob, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.demo.trial import differences
from deadpool.errors import JobFailed

PLAIN = Path(__file__).with_name("plain_torch_script.py")
INIT = Path(__file__).with_name("init_script.py")


def make_gated_job(folder, fork_server, script, *arguments, acts="", **config):
    settings = JobConfig(nodes=2, **{"spares": 1, **EVERY_STEP, **config}).checked()
    return GatedJob(settings, "", acts, folder / "job", fork_server, script=script, arguments=list(arguments))


def spare_trainers_are_up(gated: GatedJob) -> bool:
    """Both could begin the script, if there were anything to rehearse."""
    spares = [node for node in gated.status()["nodes"] if node["role"] == "spare"]  # none: it has not joined yet
    states = [trainer["state"] for spare in spares for trainer in spare["trainers"]]
    return len(states) == 2 and "starting" not in states


def test_script_that_never_asks_is_run_once_per_rank(tmp_path, fork_server):
    """A spare that ran it too would repeat its side effects and take the port of rank 0."""
    gated = make_gated_job(tmp_path, fork_server, PLAIN, rehearsals=2)

    def during(_):
        gated.trial.await_true(lambda: len(list(gated.trial.out.glob("began-*"))) >= 2, "both ranks")
        gated.trial.await_true(lambda: spare_trainers_are_up(gated), "the trainers of the spare")
        (gated.trial.out / "spare-is-up").touch()

    gated.trial.run(during)
    began = sorted(path.name.split("-")[1] for path in gated.trial.out.glob("began-*"))
    assert began == ["0", "1"]
    assert [(gated.trial.out / f"total-{rank}").read_text() for rank in (0, 1)] == ["4.0", "4.0"]
    assert not gated.events("rehearsed") and not gated.events("fault")
    assert sorted(event["rank"] for event in gated.events("unprotected")) == [0, 1]
    assert "UNPROTECTED: the script ended without ever calling protect()" in gated.trial.console()
    said = "".join(path.read_text() for path in gated.trial.job.run_dir.logs.glob("*.log"))
    assert said.count("deadpool: the script ended without calling protect()") == 1


@pytest.mark.parametrize(("way", "victim"), [("torch", 1), ("twice", 0), ("join", 1)])
def test_default_group_made_by_torchs_own_call(tmp_path, fork_server, way, victim):
    undisturbed = run_script_unprotected(INIT, ["--way", "torch"], 2, tmp_path / "undisturbed")
    gated = make_gated_job(tmp_path, fork_server, INIT, "--way", way, acts=f"wait@4:{victim}")

    def during(_):
        gated.trial.await_event("rehearsed")
        gated.kill_node_at_gate(f"n{victim}", 4)

    assert differences(undisturbed, gated.trial.run(during)) == []
    assert gated.seats()[victim] == "n2"
    assert not gated.events("unprotected")


def test_another_place_than_the_jobs_is_refused(tmp_path, fork_server):
    script = tmp_path / "script.py"
    script.write_text("import torch.distributed as dist\ndist.init_process_group('gloo', rank=0, world_size=7)\n")
    gated = make_gated_job(tmp_path, fork_server, script)
    with pytest.raises(JobFailed, match=r"\(world_size=7\) cannot be used: in this job world_size is 2"):
        gated.trial.run()
