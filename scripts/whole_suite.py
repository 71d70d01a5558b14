"""Runs the whole suite within a bound and records what came out: `scripts/whole-suite` says how it is called."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tests" / "whole-suite.md"
_END_S = 120.0
"""Pytest's tests and their processes end within this time after an interrupt."""


@dataclass(frozen=True, slots=True)
class Part:
    """The files of tests whose place in the order of names is `number` when it is counted up to `of`."""

    number: int = 1
    of: int = 1

    def files(self) -> list[str]:
        found = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))
        return found[self.number - 1 :: self.of]


def part(text: str) -> Part:
    number, slash, of = text.partition("/")
    if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise argparse.ArgumentTypeError(f"'{text}' is no part: give one as in 2/8")
    return Part(int(number), int(of))


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number: give at least 1")
    return int(text)


def run_bounded(command: list[str], limit_s: float) -> int | None:
    """Returns the exit code; None: it was cut off by the limit."""
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
        return None
    finally:
        process.wait()


def outcomes(report: Path) -> Counter[str]:
    """Counts the tests of pytest's report by what became of them; one that fails at its end, too, fails once."""
    counted: Counter[str] = Counter()
    if not report.exists():
        return counted
    worst: dict[tuple[str, str], str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = (case.get("classname", ""), case.get("name", ""))
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        came_out = "failed" if kinds & {"failure", "error"} else "skipped" if kinds else "passed"
        if worst.get(name) != "failed":
            worst[name] = came_out
    counted.update(worst.values())
    return counted


def tree() -> str:
    commit = _git("rev-parse", "--short=8", "HEAD") or "unknown"
    changed = [line for line in _git("status", "--porcelain").splitlines() if not line.endswith(RECORD.name)]
    return f"{commit} with changes" if changed else commit


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def machine() -> str:
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, {memory_gb:.0f} GB"


def line(asked: Part, code: int | None, counted: Counter[str], took_s: float) -> str:
    result = {0: "passed", None: "cut off by the limit"}.get(code, "FAILED")
    python = platform.python_version()
    cells = (
        tree(),
        f"{datetime.now(UTC):%Y-%m-%d}",
        machine(),
        f"Python {python}, torch {version('torch')}",
        "all" if asked.of == 1 else f"{asked.number} of {asked.of}",
        result,
        *(str(counted[name]) for name in ("passed", "failed", "skipped")),
        f"{took_s / 60:.0f}",
    )
    return f"| {' | '.join(cells)} |\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/whole-suite", description=__doc__)
    parser.add_argument("--limit-minutes", type=positive, default=240)
    parser.add_argument("--processes", type=positive, default=2 * len(os.sched_getaffinity(0)))
    parser.add_argument("--part", type=part, default=Part(), metavar="K/N")
    asked = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = [
            "--all",
            f"--numprocesses={asked.processes}",
            "--dist=loadfile",
            "--no-loadscope-reorder",
            f"--junitxml={report}",
        ]
        code = run_bounded([sys.executable, "-m", "pytest", *words, *asked.part.files()], asked.limit_minutes * 60.0)
        found = line(asked.part, code, outcomes(report), time.monotonic() - began)
    with RECORD.open("a", encoding="utf-8") as record:
        record.write(found)
    print(f"== {found.strip()}\n== recorded in {RECORD.relative_to(ROOT)}")
    return 1 if code is None else code


if __name__ == "__main__":
    sys.exit(main())
