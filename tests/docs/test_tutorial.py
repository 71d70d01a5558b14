"""The tutorial's script does what the tutorial says: the same losses with and without DeadPool, and through a loss."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.thorough]

TUTORIAL = Path(__file__).resolve().parents[2] / "docs/tutorial.md"
STEPS, KILLED_AT = 120, 60


def write_script(folder: Path) -> None:
    script = re.findall(r"^```python\n(.*?)^```", TUTORIAL.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[0]
    assert "job.steps(2000)" in script
    (folder / "train.py").write_text(script.replace("job.steps(2000)", f"job.steps({STEPS})"), encoding="utf-8")


def run(folder: Path, module: str, *arguments: str) -> str:
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(folder: Path, *journal: str) -> list[tuple[int, int, float]]:
    lines = run(folder, "deadpool.cli.main", "show", "journal", *journal, "--key", "loss").splitlines()
    records = [json.loads(line) for line in lines]
    return [(record["step"], record["rank"], record["values"]["loss"]) for record in records]


@pytest.mark.timeout(900)
def test_losses_are_the_same_with_and_without_deadpool(tmp_path: Path) -> None:
    write_script(tmp_path)
    plain = run(tmp_path, "torch.distributed.run", "--nproc-per-node", "2", "train.py")
    fault = f"at=backward step={KILLED_AT} node=n1"
    job = ("--nodes", "2", "--spares", "1", "--fault", fault, "train.py")
    protected = run(tmp_path, "deadpool.cli.main", "run", *job)
    assert "FAULT" in protected
    # torchrun's ranks write the end of a line by itself, so two lines may stand in one
    ends = [sorted(re.findall(r"rank \d ends with state [0-9a-f]+", text)) for text in (plain, protected)]
    assert len(ends[0]) == 2 and ends[0] == ends[1]
    assert len(losses(tmp_path)) == 2 * STEPS
    assert losses(tmp_path) == losses(tmp_path, "--folder", "deadpool-journal")
