"""Runs `deadpool doctor` as a child of this process and reads what it found.

A process of its own: it has this one's limits, cgroup and environment, so it finds what this one suffers from, and
whatever hangs there does not hang here.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

_MORE_S = 5.0  # for Python to start on a busy machine


def run_doctor(words: Sequence[str], *, timeout_s: float) -> dict[str, Any]:
    """What it prints as JSON; {"error": why} where it does not end or prints something else. `timeout_s` is what the
    checks themselves may take."""
    command = [sys.executable, "-m", "deadpool.cli.main", "doctor", "--json", f"--timeout-s={timeout_s:g}", *words]
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, complaint = child.communicate(timeout=timeout_s + _MORE_S)
        told = json.loads(printed)
        return told if isinstance(told, dict) else {"error": "it printed no object"}
    except subprocess.TimeoutExpired:
        return {"error": f"it did not end within {timeout_s + _MORE_S:g} s"}
    except ValueError:
        return {"error": complaint.strip()[-500:] or f"it ended with code {child.returncode}"}
    finally:
        _end(child)


def _end(child: subprocess.Popen[str]) -> None:
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1.0)
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
