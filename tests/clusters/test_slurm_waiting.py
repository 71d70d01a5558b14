"""A job that asks for more nodes than there are: refused where that is certain, else it is said what it waits for.

Slurm's commands are scripts here, which print what the formats give by their manual pages.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from deadpool.cli.main import main
from deadpool.clusters.slurm import client, run_folder
from deadpool.clusters.slurm.batch import check_node_count, largest_partition
from deadpool.clusters.slurm.client import PartitionSize, PendingJob
from deadpool.clusters.slurm.run_folder import RunFolder, note_submission, submitted_job
from deadpool.clusters.slurm.waiting import StartWatch, why_it_waits, why_not_begun
from deadpool.errors import ConfigError

SIZES = "debug|debug*|1/1/1/3\ngpu|gpu|8/0/0/8\n"
DEBUG = PartitionSize(name="debug", is_default=True, in_use=1, idle=1, other=1, total=3)
GPU = PartitionSize(name="gpu", is_default=False, in_use=8, idle=0, other=0, total=8)
RESOURCES = "PENDING|5|gpu|Resources"
INVALID = "slurm_load_jobs error: Invalid job id specified"


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Puts commands of Slurm on the PATH. Each prints the next of its lines, and the last one again and again."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    for variable in ("SBATCH_PARTITION", "SBATCH_CLUSTERS", "SLURM_JOB_ID", "SLURM_JOBID"):
        monkeypatch.delenv(variable, raising=False)

    def answers(name: str, *outputs: str, code: int = 0) -> None:
        for number, text in enumerate(outputs):
            (folder / f"{name}.{number}").write_text(text)
        script = f"""#!/bin/sh
cd {folder}; echo "$@" >> {name}.calls; cat > /dev/null
number=$(($(wc -l < {name}.calls) - 1))
[ -e {name}.$number ] || number={len(outputs) - 1}
if [ {code} = 0 ]; then cat {name}.$number; else cat {name}.$number >&2; exit {code}; fi
"""
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)

    answers("sinfo", SIZES)
    return answers


def test_sizes_of_partitions(slurm):
    assert client.partition_sizes() == [DEBUG, GPU]


def test_job_that_waits(slurm):
    slurm("squeue", RESOURCES)
    assert client.pending_job("17") == PendingJob(nodes=5, partition="gpu", reason="Resources")
    slurm("squeue", "PENDING|5|gpu|None")
    assert client.pending_job("17") == PendingJob(nodes=5, partition="gpu", reason="")


@pytest.mark.parametrize("line", ["RUNNING|5|gpu|None", "CANCELLED|5|gpu|None", ""])
def test_job_that_does_not_wait(slurm, line):
    slurm("squeue", line)
    assert client.pending_job("17") is None


def test_job_that_slurm_has_forgotten_does_not_wait(slurm):
    slurm("squeue", INVALID, code=1)
    assert client.pending_job("17") is None


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "Resources (too few of its nodes are free)"),
        ("PartitionNodeLimit", "PartitionNodeLimit (no job may have so many nodes there"),
        ("ReqNodeNotAvail, UnavailableNodes:n3", "UnavailableNodes:n3 (a node that it asks for is not available)"),
        ("QOSMaxNodePerUserLimit", "QOSMaxNodePerUserLimit (a limit of its quality of service)"),
        ("AssocGrpNodeLimit", "AssocGrpNodeLimit (a limit of its account)"),
        ("SomethingNew", "partition gpu: SomethingNew; gpu has 8 nodes"),
        ("", "Slurm has not said why yet"),
    ],
)
def test_reason_in_words(reason, words):
    said = why_it_waits(PendingJob(nodes=5, partition="gpu", reason=reason), [DEBUG, GPU])
    assert said.startswith("it waits for 5 nodes of partition gpu: ") and words in said
    assert said.endswith("gpu has 8 nodes: 0 idle, 8 in use, 0 down or drained")


def test_several_partitions_are_all_told():
    said = why_it_waits(PendingJob(nodes=1, partition="gpu,debug", reason="Priority"), [DEBUG, GPU])
    assert "1 node of partition gpu,debug: Priority (other jobs come first)" in said
    assert "debug has 3 nodes: 1 idle, 1 in use, 1 down or drained; gpu has 8" in said


def test_what_it_waits_for_is_said_once_and_again_when_it_changes(slurm, monkeypatch):
    monkeypatch.setattr("deadpool.clusters.slurm.waiting.time.sleep", lambda _: None)
    slurm("sinfo", "gpu|gpu*|4/4/0/8", "gpu|gpu*|5/3/0/8")
    waits = ["PENDING|5|gpu|None", RESOURCES, RESOURCES, "PENDING|5|gpu|Priority", RESOURCES, "RUNNING|5|gpu|None"]
    slurm("squeue", *waits, "17|RUNNING|n1|N/A|train")
    said: list[str] = []
    StartWatch("17", said.append).follow()
    assert [words.partition(": ")[2].split(" ")[0] for words in said[:-1]] == ["Resources", "Priority", "Resources"]
    assert said[-1] == "it is RUNNING"


def test_controller_that_does_not_answer_is_asked_again(slurm):
    slurm("squeue", "slurm_load_jobs error: Unable to contact slurm controller", code=1)
    said: list[str] = []
    watch = StartWatch("17", said.append)
    assert watch.look() and watch.look()
    assert said == ["it is not known whether it has started: slurm_load_jobs error: Unable to contact slurm controller"]


@pytest.mark.parametrize(
    ("options", "variable", "found"),
    [
        ([], "", DEBUG),
        (["--partition=gpu"], "", GPU),
        (["-p", "gpu"], "debug", GPU),
        (["-pgpu"], "", GPU),
        ([], "gpu", GPU),
        (["--partition=debug,gpu"], "", GPU),
        (["--partition=unknown"], "", None),
        (["--partition=debug,unknown"], "", None),
        (["--clusters=other"], "", None),
        (["--reservation=mine"], "", None),
        (["--nodes=2-9"], "", None),
        (["--part=gpu"], "", None),
        (["--parsable"], "", DEBUG),
    ],
)
def test_partition_that_counts(slurm, options, variable, found):
    assert largest_partition([DEBUG, GPU], options, variable) == found


def test_more_nodes_than_the_partition_has_are_refused(slurm):
    check_node_count(3, [])  # one of them is drained today
    check_node_count(8, ["--partition=gpu"])
    with pytest.raises(ConfigError, match=r"asks for 4 nodes, spares included, and partition debug has 3\."):
        check_node_count(4, [])


def test_slurm_that_does_not_tell_refuses_nothing(slurm):
    slurm("sinfo", "slurm_load_partitions: Unable to contact slurm controller", code=1)
    check_node_count(4000, [])


def submitted(monkeypatch, capfd, folder: Path, *words: str) -> tuple[int, str, str]:
    (folder / "train.py").write_text("print('over')")
    command = ["slurm", "submit", "--run-dir", str(folder / "run"), *words, str(folder / "train.py")]
    monkeypatch.setattr(sys, "argv", ["deadpool", *command])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0), *capfd.readouterr()


def test_submission_that_can_never_start_is_refused(slurm, tmp_path, monkeypatch, capfd):
    slurm("sbatch", "17")
    code, _, said = submitted(monkeypatch, capfd, tmp_path, "--nodes", "3", "--spares", "1")
    assert code == 2 and "it asks for 4 nodes, spares included, and partition debug has 3" in said
    assert not (tmp_path / "bin" / "sbatch.calls").exists() and not (tmp_path / "run").exists()


def test_submission_says_what_it_waits_for_and_so_does_status(slurm, tmp_path, monkeypatch, capfd):
    slurm("sbatch", "17")
    slurm("squeue", "PENDING|3|debug|None", "PENDING|3|debug|Resources")
    code, told, _ = submitted(monkeypatch, capfd, tmp_path, "--nodes", "3")
    waits = "it waits for 3 nodes of partition debug: Resources (too few of its nodes are free); debug has 3 nodes"
    assert code == 0 and told.startswith("Submitted batch job 17\n") and f"\njob 17: {waits}" in told
    monkeypatch.setattr(sys, "argv", ["deadpool", "status", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"deadpool: job 17 of Slurm has not started: {waits}" in capfd.readouterr().err


def test_submission_that_starts_at_once_says_nothing_more(slurm, tmp_path, monkeypatch, capfd):
    slurm("sbatch", "17")
    slurm("squeue", "RUNNING|1|debug|None")
    _, told, _ = submitted(monkeypatch, capfd, tmp_path, "--nodes", "1")
    assert "job 17:" not in told


def test_job_that_is_gone_before_it_began(slurm, tmp_path):
    assert why_not_begun(tmp_path) is None
    note_submission(tmp_path, "17")
    assert submitted_job(tmp_path) == "17" and (tmp_path / "submitted.json").stat().st_mode & 0o077 == 0
    slurm("squeue", INVALID, code=1)
    assert f"has ended before it began: see {tmp_path}/slurm.out" in str(why_not_begun(tmp_path))


def test_folder_of_a_job_that_is_not_over_takes_no_second_one(slurm, tmp_path, monkeypatch, capfd):
    slurm("sbatch", "18")
    slurm("squeue", "17|RUNNING|n1|N/A|train")
    (tmp_path / "run").mkdir()
    note_submission(tmp_path / "run", "17")
    code, _, said = submitted(monkeypatch, capfd, tmp_path, "--nodes", "1")
    assert code == 2 and "job 17 of Slurm (RUNNING) was submitted with it" in said
    assert submitted_job(tmp_path / "run") == "17" and not (tmp_path / "bin" / "sbatch.calls").exists()


def test_folder_of_a_job_that_is_over_takes_another_one(slurm, tmp_path, monkeypatch, capfd):
    slurm("sbatch", "18")
    slurm("squeue", "")
    (tmp_path / "run").mkdir()
    note_submission(tmp_path / "run", "17")
    code, _, _ = submitted(monkeypatch, capfd, tmp_path, "--nodes", "1")
    assert code == 0 and submitted_job(tmp_path / "run") == "18"


def test_job_does_not_begin_in_the_folder_of_one_that_beats(tmp_path, monkeypatch):
    first, other = RunFolder(tmp_path, "17.0"), RunFolder(tmp_path, "18.0")
    first.begin({})
    secret = first.run_dir.secret_file.read_bytes()
    beats = iter(range(100))
    monkeypatch.setattr(RunFolder, "last_beat", lambda self: {"t": next(beats)})
    with pytest.raises(ConfigError, match="job 17 of Slurm runs in it"):
        other.begin({})
    assert first.run_dir.secret_file.read_bytes() == secret and first.description() is not None
    RunFolder(tmp_path, "17.1").begin({})  # it was requeued


def test_job_begins_in_the_folder_of_one_that_was_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "_SILENT_S", 0.3)
    RunFolder(tmp_path, "17.0").begin({})
    RunFolder(tmp_path, "17.0").beat()
    RunFolder(tmp_path, "18.0").begin({})
    assert (tmp_path / "attempt-17.0").is_dir()
