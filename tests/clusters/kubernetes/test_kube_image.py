"""The image's definition passes its linter. Where a base image can be had, `docker build` is the better test."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCKERFILE = Path(__file__).resolve().parents[3] / "deploy/Dockerfile"
HADOLINT = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed")
def test_dockerfile_passes_its_linter() -> None:
    done = subprocess.run([str(HADOLINT), str(DOCKERFILE)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_image_is_pinned_and_not_of_root() -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    constraints = (DOCKERFILE.parents[1] / "constraints.txt").read_text(encoding="utf-8")
    (torch,) = re.findall(r"^ARG TORCH=(.+)$", text, re.MULTILINE)
    assert f"torch=={torch}\n" in constraints
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["python:${PYTHON}"] * 2
    assert re.findall(r"^ARG PYTHON=\d+\.\d+\.\d+-\S+$", text, re.MULTILINE)
    assert re.findall(r"^USER (.+)$", text, re.MULTILINE) == ["1000:1000"]
