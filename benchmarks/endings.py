"""Sums up a run of the matrix process x signal x phase: cells, how many ended as its table says, the longest times.

    pytest tests/cli/test_endings.py -o junit_family=xunit1 --junitxml=endings.xml
    python benchmarks/endings.py endings.xml

Several files are one run in parts; of a cell that is in several, the last one counts. The time of a cell is from the
signal until the launcher has ended and nothing of the job is left. Where the job goes on after the signal it includes
the rest of its training.
"""

from __future__ import annotations

import argparse
import re
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

from output import give_out

_CELL = re.compile(r"test_process_is_ended\[(.+?)-((?:SIG|Ctrl)[A-Za-z-]*)-([a-z]+)\]$")


def cells_of(files: list[Path]) -> dict[tuple[str, str, str], float | None]:
    """Seconds by process, signal and phase; None: the cell failed."""
    found: dict[tuple[str, str, str], float | None] = {}
    for case in (case for file in files for case in ElementTree.parse(file).iter("testcase")):
        if named := _CELL.match(case.attrib["name"]):
            seconds = case.find("properties/property[@name='seconds']")
            failed = case.find("failure") is not None or case.find("error") is not None or seconds is None
            found[named[1], named[2], named[3]] = None if failed else float(seconds.attrib["value"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("xml", type=Path, nargs="+")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cells = cells_of(args.xml)
    longest: dict[str, float] = defaultdict(float)
    for (_, sent, _), seconds in cells.items():
        longest[sent] = max(longest[sent], seconds or 0.0)
    failed = [" ".join(cell) for cell, seconds in cells.items() if seconds is None]
    give_out({"cells": len(cells), "failed": failed, "longest_s": dict(sorted(longest.items()))}, args.json)


if __name__ == "__main__":
    main()
