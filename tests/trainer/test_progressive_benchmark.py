"""benchmarks/progressive.py drives the trainer's own capture, outside of a trainer: it has to follow it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "progressive.py"
FEW = ("--parameters", "1e5", "--every", "2", "--captures", "1", "--stretches", "1")


@pytest.mark.thorough
def test_each_way_captures_and_exactly(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    subprocess.run([sys.executable, str(BENCHMARK), *FEW, "--json", str(out)], check=True, timeout=600)
    ways = {each["way"]: each for each in json.loads(out.read_text())["ways"]}
    assert ways["waits"]["captured"] == 1 and ways["waits"]["exact"] is True
    assert ways["given-up"]["captured"] + ways["given-up"]["missed"] == 1
    assert ways["set-aside"]["exact"] is True and ways["set-aside"]["set_aside_gb"] == 0  # host memory never is
