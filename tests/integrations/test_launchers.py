"""What stands in for the launchers of frameworks: the variables and arguments that these set, and what is refused."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ports import reserved_port

from deadpool.integrations.refusals import Refused

TELLS = """\
import json, os, pathlib, sys
path = pathlib.Path(__file__).with_name("rank" + os.environ["RANK"])
path.write_text(json.dumps([dict(os.environ), sys.argv[1:]]))
"""
"""A script whose ranks write down their variables and arguments, each into a file beside it."""
FILE = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
machine_rank: 0
num_machines: 1
num_processes: 2
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: Block
  fsdp_reshard_after_forward: true
"""


def told_by(launcher: list[str], folder: Path) -> tuple[dict[str, str], list[str]]:
    """The variables and arguments of rank 1."""
    (folder / "tells.py").write_text(TELLS)
    command = [sys.executable, "-m", *launcher, str(folder / "tells.py")]
    made = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert made.returncode == 0, made.stdout + made.stderr
    variables, arguments = json.loads((folder / "rank1").read_text())
    return variables, arguments


class TestAccelerate:
    @pytest.fixture(autouse=True)
    def environment_of(self):
        pytest.importorskip("accelerate")
        from deadpool.integrations.accelerate.__main__ import environment_of

        self.environment_of = environment_of

    @pytest.fixture
    def file(self, tmp_path: Path) -> str:
        (tmp_path / "accelerate.yaml").write_text(FILE)
        return str(tmp_path / "accelerate.yaml")

    def test_file_of_the_launcher_becomes_variables(self, file):
        args, found = self.environment_of(["--config_file", file, "train.py", "--lr", "1"], 2)
        assert (args.training_script, args.training_script_args) == ("train.py", ["--lr", "1"])
        assert found["ACCELERATE_MIXED_PRECISION"] == "bf16" and found["ACCELERATE_USE_FSDP"] == "true"
        assert found["FSDP_VERSION"] == "2" and found["FSDP_TRANSFORMER_CLS_TO_WRAP"] == "Block"
        assert not {"MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"} & found.keys()

    @pytest.mark.thorough
    def test_variables_are_those_that_accelerate_sets(self, file, tmp_path):
        command = ["accelerate.commands.launch", "--config_file", file, "--main_process_port", "0"]
        theirs, _ = told_by(command, tmp_path)
        _, found = self.environment_of(["--config_file", file, "train.py"], 2)
        others = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "COLUMNS", "LINES"}
        added = {
            name: value
            for name, value in theirs.items()
            if os.environ.get(name) != value and name not in others and not name.startswith(("LOCAL_", "GROUP_"))
        }
        added = {name: value for name, value in added.items() if not name.startswith(("ROLE_", "TORCH", "PYTEST"))}
        assert found == added

    @pytest.mark.parametrize(
        ("options", "name"),
        [
            (["--multi_gpu", "--num_processes", "4"], "OTHER_COUNT"),
            (["--multi_gpu", "--num_processes", "2", "--gpu_ids", "0,1"], "GPU_IDS"),
            (["--multi_gpu", "--num_processes", "2", "--no_python"], "LAUNCHER"),
            (["--use_deepspeed", "--num_processes", "2"], "LAUNCHER"),
        ],
    )
    def test_what_other_launchers_would_start_is_refused(self, options, name):
        with pytest.raises(Refused) as refused:
            self.environment_of([*options, "train.py"], 2)
        assert refused.value.refusal.name == name


RANKS = {"WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}


class TestDeepSpeed:
    @pytest.fixture(autouse=True)
    def command_of(self, tmp_path, monkeypatch):
        pytest.importorskip("deepspeed")
        from deadpool.integrations.deepspeed.__main__ import command_of

        monkeypatch.chdir(tmp_path)
        self.command_of = command_of

    def test_script_is_told_its_local_rank(self, tmp_path):
        (tmp_path / "hosts").write_text("# two machines\none slots=2\n\ntwo slots=2\n")
        (tmp_path / ".deepspeed_env").write_text("NCCL_IB_GID_INDEX=3\n")
        command, found = self.command_of(["--hostfile", "hosts", "train.py", "--lr", "1"], RANKS)
        assert command == ["train.py", "--local_rank=1", "--lr", "1"]
        assert found.items() >= {
            ("LOCAL_SIZE", "2"),
            ("CROSS_RANK", "1"),
            ("CROSS_SIZE", "2"),
            ("NCCL_IB_GID_INDEX", "3"),
        }

    def test_module_is_run_without_it(self):
        command, _ = self.command_of(["--module", "--no_local_rank", "openrlhf.cli.train_sft", "--a"], RANKS)
        assert command == ["-m", "openrlhf.cli.train_sft", "--a"]

    @pytest.mark.thorough
    def test_variables_and_arguments_are_those_that_deepspeed_sets(self, tmp_path):
        world = base64.urlsafe_b64encode(json.dumps({"localhost": [0, 1]}).encode()).decode()
        with reserved_port() as port:
            launcher = ["deepspeed.launcher.launch", f"--world_info={world}", "--master_port", str(port)]
            theirs, arguments = told_by(launcher, tmp_path)
        command, found = self.command_of(
            ["train.py"], RANKS | {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "WORLD_SIZE": "2"}
        )
        assert command[1:] == arguments
        assert found == {name: theirs[name] for name in ("LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")}

    @pytest.mark.parametrize(
        ("options", "name"),
        [
            (["--num_gpus", "8"], "OTHER_COUNT"),
            (["--hostfile", "hosts"], "OTHER_COUNT"),
            (["--hostfile", "hosts", "--include", "one:0"], "OTHER_COUNT"),
            (["--no_python"], "LAUNCHER"),
            (["--bind_cores_to_rank"], "LAUNCHER"),
            (["--autotuning", "run"], "AUTOTUNING"),
        ],
    )
    def test_what_it_would_start_otherwise_is_refused(self, tmp_path, options, name):
        (tmp_path / "hosts").write_text("one slots=8\n")
        with pytest.raises(Refused) as refused:
            self.command_of([*options, "train.py"], RANKS)
        assert refused.value.refusal.name == name
