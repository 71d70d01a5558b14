"""Two jobs share three machines of a pool, on real processes: `benchmarks/pool.py` with few faults."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "pool.py"
BUSY_S = 600.0
"""That a command is gone within a second is measured by the benchmark: it is niced, and waits where others compute."""


@pytest.mark.thorough
@pytest.mark.e2e
@pytest.mark.timeout(1500)
def test_faults_over_two_jobs(tmp_path: Path) -> None:
    words = ["--faults", "4", "--preempted-within-s", str(BUSY_S)]
    words += ["--folder", str(tmp_path / "site"), "--json", str(tmp_path / "result.json")]
    done = subprocess.run([sys.executable, str(BENCHMARK), *words], capture_output=True, text=True, timeout=1400)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["faults"] >= 4 and result["shared"] == []
    assert set(map(tuple, result["differences"].values())) == {()}
    assert result["preempted"] > 0
