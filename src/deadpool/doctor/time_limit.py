"""How long the allocation that this process is in will last, where its engine says so."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping

from deadpool.doctor.finding import Facts, Finding

_SLURM_END, _SLURM_JOB = "SLURM_JOB_END_TIME", "SLURM_JOB_ID"
_LEFT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
_ASK_S = 3.0


def check_time_limit(
    end_time: float | None, least_s: float, environment: Mapping[str, str] = os.environ
) -> tuple[Facts, list[Finding]]:
    left_s = _left_s(end_time, environment)
    if left_s is None:
        return {}, []
    facts: Facts = {"time_left_s": round(left_s)}
    if left_s >= least_s:
        return facts, []
    what = f"the allocation ends in {max(0.0, left_s):.0f} s" if left_s > 0 else "the allocation's time is over"
    do = "ask for more time (Slurm --time, or `scontrol update job` as its operator), or begin in a new allocation"
    return facts, [Finding(check="time limit", what=f"{what}, and less than {least_s:g} s is no time to train", do=do)]


def _left_s(end_time: float | None, environment: Mapping[str, str]) -> float | None:
    """Slurm sets the end in jobs of version 22.05 and later; before that, and in a prolog, its commands tell."""
    if end_time is not None:
        return end_time - time.time()
    if (end := environment.get(_SLURM_END, "")).isdigit() and int(end) > 0:
        return int(end) - time.time()
    job = environment.get(_SLURM_JOB, "")
    return _ask_slurm(job) if job and shutil.which("squeue") else None


def _ask_slurm(job: str) -> float | None:
    command = ["squeue", "--noheader", f"--jobs={job}", "--format=%L"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_ASK_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_left(done.stdout.strip())


def parse_left(text: str) -> float | None:
    """Reads a time as squeue writes it: 2-03:04:05, 3:04:05 or 4:05. It returns None for UNLIMITED, or no such job."""
    if (match := _LEFT.fullmatch(text)) is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
