"""What nodes have to agree on: clocks, versions, and how long there is.

This node's clock: whether the kernel says that something keeps it right. How far it is off, only others can tell.

`check_time_limit` and `parse_left`: how long the allocation that this process is in will last, where its engine says
so.

`compare`: what only the reports of several nodes together tell: whether they have the same versions.

`check_versions`, `check_import` and `driver_version`: which versions this node has, without importing what is large:
torch takes seconds.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from deadpool import __version__
from deadpool.doctor.finding import Facts, Finding, NodeReport, note

MOST_APART_S = 0.5
"""Events of all nodes are put in order by their clocks, and a recovery takes about a second."""

_STA_UNSYNC = 0x0040
_BUFFER_LONGS = 32  # more than struct timex has
_STATUS_OFFSET = 40  # on 64-bit machines: modes, offset, freq, maxerror, esterror, then status


def check_clock() -> tuple[Facts, list[Finding]]:
    facts: Facts = {"clock_synchronized": _is_synchronized()}
    if facts["clock_synchronized"] is False:
        do = "run chrony or systemd-timesyncd, unless the clock is kept right from outside (a virtual machine)"
        return facts, [note("clock", "the kernel does not know of anything that keeps this clock right", do)]
    return facts, []


def _is_synchronized() -> bool | None:
    """None: the kernel does not say."""
    buffer = (ctypes.c_long * _BUFFER_LONGS)()
    if ctypes.sizeof(ctypes.c_long) != 8 or ctypes.CDLL(None).adjtimex(buffer) < 0:
        return None
    status = ctypes.c_int.from_buffer(buffer, _STATUS_OFFSET).value
    return not status & _STA_UNSYNC


def offset_s(sent: float, arrived: float, left: float, received: float) -> tuple[float, float]:
    """How far a peer's clock is ahead, and how wrong that may be: as NTP does it. `sent` and `received` are ours."""
    return ((arrived - sent) + (left - received)) / 2, ((received - sent) - (left - arrived)) / 2


def apart(node: str, ahead_s: float, error_s: float, of_whom: str) -> list[Finding]:
    if abs(ahead_s) - max(0.0, error_s) <= MOST_APART_S:
        return []
    word = "ahead of" if ahead_s > 0 else "behind"
    what = f"its clock is {abs(ahead_s):.2f} s {word} that of {of_whom}"
    do = (
        "set it right (chronyc makestep, timedatectl set-ntp true): events of a recovery would be told in a wrong order"
    )
    return [Finding(check="clock", node=node, what=what, do=do)]


def now() -> float:
    return time.time()


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


COMPARED = {"deadpool": "DeadPool", "python": "Python", "torch": "torch", "nccl": "NCCL", "driver": "NVIDIA driver"}
"""Facts that have to be the same on every node, and what people call them."""

_NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
_DRIVER = Path("/proc/driver/nvidia/version")
_ASK_TORCH = """
import torch
nccl = torch.cuda.nccl.version() if torch.cuda.is_available() else ()
print(torch.__version__, ".".join(map(str, nccl)))
"""


def check_versions() -> tuple[Facts, list[Finding]]:
    facts: Facts = {"deadpool": __version__, "python": platform.python_version(), "torch": _installed("torch")}
    nccl = next((found for name in _NCCL if (found := _installed(name)) is not None), None)
    facts |= {"nccl": nccl, "driver": driver_version(), "kernel": platform.release()}
    if facts["torch"] is None:
        do = f"pip install torch for {sys.executable}, or start the doctor with the job's own Python"
        return facts, [Finding(check="versions", what="torch is not installed", do=do)]
    return facts, []


def check_import() -> tuple[Facts, list[Finding]]:
    """torch itself: its import fails where a library does not fit, and it knows the NCCL that it was built with."""
    done = subprocess.run([sys.executable, "-c", _ASK_TORCH], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
        do = "run `python -c 'import torch'` on this node, and repair its installation"
        return {}, [Finding(check="versions", what=f"torch cannot be imported: {lines[-1]}", do=do)]
    torch, _, nccl = done.stdout.strip().partition(" ")
    return {"torch": torch} | ({"nccl": nccl} if nccl else {}), []


def driver_version() -> str | None:
    try:
        found = re.search(r"\b(\d{3,}\.[\d.]+)\b", _DRIVER.read_text())
    except OSError:
        return None
    return found[1] if found else None


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def compare(reports: Sequence[NodeReport]) -> list[Finding]:
    """One finding for each node that differs from most; where there is no majority, from the first."""
    findings = []
    for fact, name in COMPARED.items():
        versions = {report.node: report.facts.get(fact) for report in reports if fact in report.facts}
        usual = _usual(list(versions.values()))
        for node, version in versions.items():
            if version != usual:
                findings.append(_differs(node, name, version, usual))
    return findings


def _usual(versions: list[str | None]) -> str | None:
    """The most frequent one; the first of several that are equally frequent."""
    counted = Counter(versions).most_common(1)
    return counted[0][0] if counted else None


def _differs(node: str, name: str, version: str | None, usual: str | None) -> Finding:
    what = f"it has {name} {version or 'not at all'}, and the others have {usual or 'none'}"
    return Finding(check="versions", node=node, what=what, do=f"install {name} {usual or version} on every node")
