"""What is read from Slurm's words and written in them; no cluster is needed."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from deadpool.clusters.slurm import client
from deadpool.clusters.slurm.batch import JobScript, check_before_submission, spare_script
from deadpool.clusters.slurm.options import (
    Allocation,
    assign_roles,
    job_settings,
    option_words,
    racks_of_features,
    racks_of_switches,
    read_allocation,
    words_for_spare,
    words_of_record,
)
from deadpool.clusters.slurm.run_folder import RunFolder
from deadpool.clusters.slurm.watch import TimeLimit
from deadpool.errors import ConfigError

TOPOLOGY = """\
SwitchName=leaf-a Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=leaf-b Level=0 LinkSpeed=1 Nodes=n3
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-3] Switches=leaf-[a-b]
"""


def expand(text: str) -> list[str]:
    return {"n[1-2]": ["n1", "n2"], "n3": ["n3"], "n[1-3]": ["n1", "n2", "n3"]}[text]


def allocation(hosts: str, *, gpus: int = 0) -> Allocation:
    return Allocation(job_id="17", restarts=0, hosts=tuple(hosts.split()), own=hosts.split()[0], gpus=gpus)


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="needs Slurm's scontrol")
def test_mixed_node_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=none\nSlurmctldHost=localhost\nNodeName=n1\n")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    assert client.host_names("n[1-3,07],gpu-a[1-2]") == ["n1", "n2", "n3", "n07", "gpu-a1", "gpu-a2"]


def test_racks_are_leaf_switches() -> None:
    assert racks_of_switches(TOPOLOGY, expand) == {"n1": "leaf-a", "n2": "leaf-a", "n3": "leaf-b"}


def test_one_switch_for_all_is_no_rack() -> None:
    assert racks_of_switches("SwitchName=all Level=0 LinkSpeed=1 Nodes=n[1-3]\n", expand) == {}
    assert racks_of_switches("", expand) == {}


def test_racks_from_features() -> None:
    features = {"n1": ["gpu", "rack7"], "n2": ["rack:b2", "gpu"], "n3": ["racked", "(null)"], "n4": ["trackless"]}
    assert racks_of_features(features) == {"n1": "rack7", "n2": "rack:b2", "n3": "racked"}


def test_coordinators_lie_in_different_racks() -> None:
    racks = {"n1": "a", "n2": "a", "n3": "b", "n4": "b"}
    roles = assign_roles(["n1", "n2", "n3", "n4"], nodes=3, standbys=1, racks=racks)
    assert roles.trains == ("n1", "n2", "n3") and roles.spares == ("n4",)
    assert roles.coordinators == ("n1", "n3")


def test_a_spare_has_the_coordinator_where_all_that_train_share_a_rack() -> None:
    racks = {"n1": "a", "n2": "a", "n3": "a", "n4": "b"}
    assert assign_roles(list(racks), nodes=3, standbys=1, racks=racks).coordinators == ("n1", "n4")


def test_two_nodes_have_one_coordinator() -> None:
    assert assign_roles(["n1", "n2", "n3"], nodes=2, standbys=1, racks={}).coordinators == ("n1",)


def test_too_few_nodes_are_refused() -> None:
    with pytest.raises(ConfigError, match="allocation has 2 nodes"):
        assign_roles(["n1", "n2"], nodes=3, standbys=1, racks={})


def test_outside_of_an_allocation() -> None:
    with pytest.raises(ConfigError, match="SLURM_JOB_ID is not set"):
        read_allocation({})


def test_settings_follow_from_the_allocation() -> None:
    config = job_settings(allocation("n1 n2 n3 n4", gpus=8), {"DEADPOOL_SPARES": "1"}, {})
    assert (config.nodes, config.nproc_per_node, config.standby_coordinators) == (3, 8, 1)
    config = job_settings(allocation("n1 n2"), {"DEADPOOL_NPROC_PER_NODE": "2"}, {})
    assert (config.nodes, config.nproc_per_node, config.standby_coordinators) == (2, 2, 0)


@pytest.mark.parametrize(
    ("variables", "resume"),
    [
        ({"DEADPOOL_DURABLE": "/shared"}, "no"),
        ({"DEADPOOL_DURABLE": "/shared", "SLURM_RESTART_COUNT": "1"}, "auto"),
        ({"DEADPOOL_DURABLE": "/shared", "SLURM_RESTART_COUNT": "1", "DEADPOOL_RESUME": "no"}, "no"),
        ({"SLURM_RESTART_COUNT": "1"}, "no"),
    ],
)
def test_a_requeued_job_begins_from_its_checkpoint(variables: dict[str, str], resume: str) -> None:
    assert job_settings(allocation("n1 n2"), variables, {}).resume == resume


def test_end_is_not_near_once_the_time_limit_is_extended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one durable checkpoint after the other would be written for days."""
    monkeypatch.setattr("deadpool.clusters.slurm.client.is_preempted", lambda _: False)
    said: list[str] = []
    limit = TimeLimit("7", RunFolder(tmp_path, "7.0"), requeue=True, warn_s=60.0, say=lambda _, text: said.append(text))
    for left_s, is_near in ((3600.0, False), (50.0, True), (7200.0, False), (40.0, True)):
        assert not limit.look(time.time() + left_s)
        assert limit.is_near == is_near
    assert len(said) == 2, "both ends were announced"
    assert limit.look(time.time() + 10.0)


def test_a_topology_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="racks come from Slurm"):
        job_settings(allocation("n1 n2"), {}, {"topology": "racks.toml"})


def test_options_of_a_spare() -> None:
    words = option_words(
        {"time": "8:00:00", "partition": "gpu", "exclusive": True, "exclude": "bad[1-2]"}, ["--nice=3"]
    )
    assert words == ["--time=8:00:00", "--partition=gpu", "--exclude=bad[1-2]", "--exclusive", "--nice=3"]
    spare = words_for_spare(words, exclude={"n3", "n1"}, seconds_left=125.0)
    assert spare == ["--partition=gpu", "--exclusive", "--nice=3", "--time=3", "--exclude=bad[1-2],n1,n3"]


def test_without_a_time_limit_a_spare_has_none() -> None:
    assert words_for_spare(["--partition=gpu"], exclude=(), seconds_left=None) == ["--partition=gpu"]


def test_options_of_a_job_that_others_submitted() -> None:
    record = {
        "Partition": "gpu", "Account": "(null)", "QOS": "N/A", "TresPerNode": "gres:gpu:4", "Features": "a100&ib",
        "CPUs/Task": "32",
    }  # fmt: skip
    assert words_of_record(record) == ["--partition=gpu", "--constraint=a100&ib", "--gres=gpu:4", "--cpus-per-task=32"]


def test_odd_characters_reach_the_script() -> None:
    program = ["a script's.py", "--text", 'two "words"', "$HOME", "`id`"]
    made = JobScript(
        options=["--comment=it's mine"],
        settings={"DEADPOOL_FAULTS": "at=step step=3; at=step step=4"},
        program=program,
        nodes=2,
        run_dir=Path("/home/a b/run"),
        job_name="n",
        requeue=False,
        warn_s=120,
    )
    text = made.text()
    replaced = text.replace("exec ", "printf '%s\\n' ", 1)
    printed = subprocess.run(["bash", "-c", replaced], capture_output=True, text=True, check=True, timeout=300).stdout
    assert printed.splitlines()[-len(program) :] == program
    assert "--run-dir=/home/a b/run" in printed.splitlines()
    directives = [shlex.split(line)[1] for line in text.splitlines() if line.startswith("#SBATCH")]
    assert "--comment=it's mine" in directives


def test_a_spare_starts_in_the_folder_of_its_job() -> None:
    text = spare_script(Path("/runs/a b"), "17.1", (), "/home/x y")
    assert "cd '/home/x y' || exit" in text and "'--run-dir=/runs/a b' --of=17.1" in text


def test_another_attempt_has_another_secret_and_sees_nothing_of_the_first(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path / "run", "17.0"), RunFolder(tmp_path / "run", "17.1")
    first.begin({"nodes": 1})
    secret = first.run_dir.secret_file.read_text()
    assert first.run_dir.secret_file.stat().st_mode & 0o077 == 0
    first.begin({"nodes": 1})
    assert first.run_dir.secret_file.read_text() == secret  # the second of two processes of one attempt
    first.run_dir.events.write_text("{}\n")
    first.publish_place(0, "10.0.0.1:1")
    second.begin({"nodes": 1})
    first.set_result(1, "a node of the first attempt that was cut off")
    assert first.description() is None and second.description() is not None
    assert second.result() is None and second.last_beat() is None
    assert second.run_dir.secret_file.read_text() != secret
    assert (tmp_path / "run" / "attempt-17.0" / "events.jsonl").exists() and not second.run_dir.events.exists()


def test_a_run_folder_that_cannot_be_written_to_is_found_before_the_submission(tmp_path: Path) -> None:
    check_before_submission(tmp_path / "runs" / "first")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"not submitted: .*file cannot be written to: .* --no-preflight"):
        check_before_submission(tmp_path / "file" / "first")


def test_a_preempted_job_without_a_time_limit_gets_a_notice_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, said = RunFolder(tmp_path, "17.0"), []
    limit = TimeLimit("17", folder, requeue=True, warn_s=120, say=lambda what, text: said.append(text))
    monkeypatch.setattr(client, "is_preempted", lambda job_id: False)
    assert not limit.look(None) and not folder.notice_file.exists()
    monkeypatch.setattr(client, "is_preempted", lambda job_id: True)
    assert not limit.look(None) and not limit.look(None)
    assert json.loads(folder.notice_file.read_text()) == {"reason": "preempted", "ends_at": None} and len(said) == 1
