"""The examples of the frameworks, by the command on their page and with a fault: they train what torchrun trains."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torchrun import torchrun

from deadpool.events.event import read_events
from deadpool_lab.workload.run import LIMIT_S

ROOT = Path(__file__).parents[2]
_STEP = re.compile(r"step:? +(\d+):? +loss:? +([\d.]+)")


def checkpoint_of_transformers(out: Path, _: str) -> Any:
    return {path.parent.name: path.read_bytes() for path in out.glob("checkpoint-*/model.safetensors")}


def checkpoint_of_lightning(out: Path, _: str) -> Any:
    kept = {path.name: torch.load(path, weights_only=False)["state_dict"] for path in out.glob("*.ckpt")}
    return {path: {name: each.tolist() for name, each in weights.items()} for path, weights in kept.items()}


def printed_losses(_: Path, printed: str) -> Any:
    """Of a step that was done again the last."""
    return dict(_STEP.findall(printed))


EXAMPLES: dict[str, tuple[str, str, Callable[[Path, str], Any]]] = {
    "transformers": ("--out OUT --epochs 2 --sentences 64", "transformers", checkpoint_of_transformers),
    "lightning": ("--out OUT --epochs 2 --sentences 64", "lightning", checkpoint_of_lightning),
    "torchtitan": ("--out OUT --steps 8", "torchtitan", printed_losses),
    "deepspeed": ("--steps 20", "deepspeed", printed_losses),
    "megatron": ("--steps 20", "megatron.core", printed_losses),
}


def commands_on_the_page(framework: str) -> list[list[str]]:
    page = (ROOT / "docs/howto" / f"{framework}.md").read_text()
    return [shlex.split(line) for line in re.findall(r"^deadpool run (.+)$", page, re.MULTILINE)]


def is_installed(module: str) -> bool:
    top = importlib.util.find_spec(module.partition(".")[0])
    return top is not None and importlib.util.find_spec(module) is not None


@pytest.mark.thorough
@pytest.mark.parametrize("framework", EXAMPLES)
def test_trains_what_torchrun_trains(tmp_path, framework):
    small, module, outcome = EXAMPLES[framework]
    if not is_installed(module):
        pytest.skip(f"{module} is not installed")
    script, *arguments = script_of(framework, small, tmp_path / "plain")
    undisturbed = outcome(tmp_path / "plain", torchrun(2, tmp_path, script, *arguments, timeout_s=LIMIT_S))
    printed = run_with_a_fault(framework, small, tmp_path / "job", "at=backward step=5 node=n1")
    assert undisturbed, "nothing was trained"
    assert outcome(tmp_path / "job", printed) == undisturbed


@pytest.mark.thorough
@pytest.mark.parametrize("framework", ["transformers", "lightning"])
def test_command_on_the_page(tmp_path, framework):
    _, module, outcome = EXAMPLES[framework]
    if not is_installed(module):
        pytest.skip(f"{module} is not installed")
    printed = run_with_a_fault(
        framework, "--out OUT --epochs 1 --sentences 64", tmp_path / "job", "at=backward step=2 node=n1"
    )
    assert outcome(tmp_path / "job", printed)


def script_of(framework: str, small: str, out: Path) -> list[str]:
    (command,) = commands_on_the_page(framework)
    return [str(ROOT / command[-1]), *small.replace("OUT", str(out)).split()]


def run_with_a_fault(framework: str, small: str, out: Path, fault: str) -> str:
    """By the command on the page, with a fault and less to train."""
    (command,) = commands_on_the_page(framework)
    faulty = ["--fault", fault, "--run-dir", f"{out}-run"]
    printed = deadpool_run(*command[:-1], *faulty, *script_of(framework, small, out))
    assert len([event for event in read_events(Path(f"{out}-run/events.jsonl")) if event["what"] == "fault"]) == 1
    return printed


def deadpool_run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "deadpool.cli.main", "run", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
    )
    printed = done.stdout.decode(errors="replace")
    assert done.returncode == 0, printed
    return printed
