"""A machine for the doctor to examine: real limits, mounts, cgroups, clocks and links, changed for one command only."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "deadpool.cli.main", "doctor"]
PATIENTLY = ("--timeout-s", "200")
"""A check that only waits for its turn on a busy machine is not given up. A test that gives another limit has its own:
the later word counts."""
_LIMIT_S = 300.0

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="planting this defect needs root")


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


class Examined:
    """What `deadpool doctor --json` said. Findings of a check `besides` what the test is about are left
    out."""

    def __init__(self, code: int, printed: str, complaint: str, *, besides: str = "") -> None:
        self._besides = besides
        assert printed, f"exit code {code}, and nothing but: {complaint}"
        self.told: dict[str, Any] = json.loads(printed)
        assert self.told["code"] == code
        self.code = 0 if code == 1 and not self.of() else code
        self.facts: dict[str, Any] = self.told["nodes"][0]["facts"] if self.told["nodes"] else {}

    def of(self, kind: str = "finding") -> list[dict[str, Any]]:
        told = [each for each in self.told["findings"] if each["kind"] == kind]
        return [each for each in told if each["check"] != self._besides]

    def checks(self, kind: str = "finding") -> list[str]:
        return [each["check"] for each in self.of(kind)]

    @property
    def only(self) -> dict[str, Any]:
        """The one finding. Where there are more, the doctor has seen what is not there."""
        (found,) = self.of()
        assert found["what"] and found["do"] and found["node"]
        return found


def examine(
    *words: object, before: Sequence[object] = (), more: Mapping[str, str] | None = None, limit_s: float = _LIMIT_S
) -> Examined:
    """`before` stands before the command, as in unshare or prlimit; `more` is for its environment."""
    command = [str(word) for word in (*before, *COMMAND, "--json", *PATIENTLY, *words)]
    variables = {**os.environ, **(more or {})}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, env=variables
    )
    return Examined(done.returncode, done.stdout, done.stderr)


def mounted(script: str) -> list[str]:
    """Runs a command in a mount namespace of its own, after these lines of shell."""
    return ["unshare", "--mount", "--propagation", "private", "sh", "-ec", f'{script}\nexec "$@"', "sh"]


_ORDINARY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]


@functools.cache
def ordinary() -> list[str]:
    """Runs a command as an ordinary user without any privilege."""
    asked = [*_ORDINARY, sys.executable, "-c", "import deadpool.cli.main"]
    if subprocess.run(asked, capture_output=True, timeout=_LIMIT_S).returncode != 0:
        pytest.skip("this machine has the checkout in a folder that only root may enter")
    return _ORDINARY


_FAKETIME = sorted(Path("/usr").glob("lib*/**/faketime/libfaketime.so.1"))
needs_faketime = pytest.mark.skipif(not _FAKETIME, reason="libfaketime is not installed (package faketime)")


def shifted(by: str) -> list[str]:
    """Runs a command whose clock is off, as in +10s. The library itself: its wrapper would outlive what it wraps."""
    return ["env", f"LD_PRELOAD={_FAKETIME[0]}", f"FAKETIME={by}", "FAKETIME_DONT_FAKE_MONOTONIC=1"]
