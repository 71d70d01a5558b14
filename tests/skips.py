"""What skipped tests would have needed, in one line at the end of a run, with the commands that install it.

Tests say in their own words why they are skipped. NEEDS finds what is missing in those words: a reason that it does
not know is counted among the others, and tests/packaging/test_skips.py holds it against every reason in the tests.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PACKAGES = "scripts/packages {} (as root)"
PIP = ".venv/bin/pip install -c constraints.txt -e '.[{}]' -e ./lab"
_TOLD_ELSEWHERE = os.environ.pop("CHECK_SKIPS", None)
"""A file for reasons: scripts/check tells those of both environments in one line. Not for a pytest that a test runs."""
FRAMEWORKS = "scripts/frameworks"
_MOST_NAMED = 8
_PYTHON = (
    r"could not import|the package \w+|the extra|needs (s3fs|moto|flask-cors|safetensors)"
    r"|(lightning|transformers|accelerate|hadolint|playwright|prometheus_client|kubernetes-validate) is"
    r"|(nvidia-ml-py|foundation-sdk) is"
)


@dataclass(frozen=True, slots=True)
class Need:
    """`command` installs it, with `argument` in it. Without a command there is nothing to install."""

    name: str
    pattern: str  # in the words of a reason
    command: str = ""
    argument: str = ""


NEEDS = (
    Need("root", r"needs root|only root|namespaces?\b|no cgroup can|cannot be mounted"),
    Need("an NVIDIA GPU", r"NVIDIA GPU|share a GPU"),
    Need("the Kubernetes testbed", r"scripts/testbed kubernetes test", "scripts/testbed kubernetes test"),
    Need("Kubernetes' tools", r"scripts/testbed kubernetes build", "scripts/testbed kubernetes build"),
    Need("Slurm", r"Slurm", PACKAGES, "slurm"),
    Need("OpenSSH", r"openssh", PACKAGES, "ssh"),
    Need("Prometheus or tmux", r"\b(prometheus|promtool|tmux) is missing", PACKAGES, "monitoring"),
    Need("Chromium", r"no chromium", PACKAGES, "browser"),
    Need("ISA-L", r"ISA-L", PACKAGES, "coding"),
    Need(
        "the tools of doctor's tests", r"faketime|\b(unshare|nsenter|setpriv|prlimit|ip|tc|nft) is", PACKAGES, "doctor"
    ),
    Need("a C compiler", r"C compiler", PACKAGES, "doctor"),
    Need("Ray", r"\bRay\b", PIP, "ray"),
    Need("NIXL", r"\bnixl\b", PIP, "rdma"),
    Need("frameworks", r"\b(megatron|deepspeed|torchtitan|trl|peft|datasets)\b|the library is not", FRAMEWORKS),
    Need("packages of Python", _PYTHON, PIP, "dev"),
)
ELSEWHERE = (
    r"there is (one|a GPU)|this machine has|no AcceleratorError|takes gradients for CUDA's|/dev/fuse|alone reduces no"
    r"|this torch has no|torch's own reset drops"
)
"""Tests that are for other machines or versions, and cells of a matrix that cannot be: nothing is missing."""


@dataclass(slots=True)
class Skips:
    """The reasons of one run."""

    counts: Counter[Need] = field(default_factory=Counter)
    others: int = 0

    def add(self, reason: str) -> None:
        if (need := need_of(reason)) is not None:
            self.counts[need] += 1
        else:
            self.others += 1

    def line(self) -> str:
        """Empty if nothing was skipped."""
        total = self.counts.total() + self.others
        if not total:
            return ""
        named = sorted(self.counts.items(), key=_by_count)[:_MOST_NAMED]
        rest = total - sum(count for _, count in named)
        parts = [f"{count} need {need.name}" for need, count in named]
        parts += [f"{rest} for other reasons (-rs names them)"] if rest else []
        commands = "; ".join(commands_for(self.counts))
        return f"{total} skipped: {', '.join(parts)}" + (f". To run them: {commands}" if commands else "")


def _by_count(counted: tuple[Need, int]) -> tuple[int, int]:
    need, count = counted
    return -count, NEEDS.index(need)


def need_of(reason: str) -> Need | None:
    if re.search(ELSEWHERE, reason):
        return None
    return next((need for need in NEEDS if re.search(need.pattern, reason)), None)


def commands_for(needs: Iterable[Need]) -> list[str]:
    """One command for all that it installs."""
    arguments: dict[str, list[str]] = {}
    for need in sorted(needs, key=NEEDS.index):
        if need.command:
            arguments.setdefault(need.command, []).append(need.argument)
    return [
        command.format((" " if command == PACKAGES else ",").join(dict.fromkeys(words)))
        for command, words in arguments.items()
    ]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.stats.get("skipped", [])
    reasons = [str(each.longrepr[2] if isinstance(each.longrepr, tuple) else each.longrepr) for each in reports]
    skips = Skips()
    for reason in reasons:
        skips.add(reason)
    if _TOLD_ELSEWHERE is None:
        if line := skips.line():
            terminalreporter.write_line(line)
        return
    with open(_TOLD_ELSEWHERE, "a") as file:
        file.writelines(f"{json.dumps(reason)}\n" for reason in reasons)


def main() -> None:
    """Prints the line of all runs that have written their reasons into this file."""
    skips, path = Skips(), Path(sys.argv[1])
    for reason in path.read_text().splitlines() if path.exists() else []:
        skips.add(json.loads(reason))
    if line := skips.line():
        print(line)


if __name__ == "__main__":
    main()
