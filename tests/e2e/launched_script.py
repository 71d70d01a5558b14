"""Runs a script as a framework's launcher would, with its options, in a process that DeadPool has started.

    launched_script.py --out OUT --launcher MODULE --options "..." --script SCRIPT, and what SCRIPT takes

is, with its arguments in another order, what a user writes as `deadpool run -m MODULE OPTIONS SCRIPT --out OUT ...`.
"""

from __future__ import annotations

import argparse
import runpy
import shlex
import sys

if __name__ == "__main__":
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--out", "--launcher", "--script"):
        parser.add_argument(name, required=True)
    parser.add_argument("--options", default="")
    parsed, rest = parser.parse_known_args()
    sys.argv = ["-m", *shlex.split(parsed.options), parsed.script, "--out", parsed.out, *rest]
    runpy.run_module(parsed.launcher, run_name="__main__", alter_sys=True)
