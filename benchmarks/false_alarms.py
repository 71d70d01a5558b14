"""Counts what is taken for a fault where there is none, with default settings: each situation is a healthy job.

    python benchmarks/false_alarms.py --json out/false_alarms.json

Three nodes and a spare train with steps of a second. In most situations one rank keeps all others waiting once, for
much longer than a step and without saying so: it evaluates, has children that compile (also in its first step), writes
a checkpoint slowly, waits for a slow service, or for its data. In the situation `load` nothing happens, beside four
times as many busy processes as the machine has processors, and one that writes to the disk.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from output import give_out
from slow_step import DOING

from deadpool.config.job_config import JobConfig
from deadpool.control.launch.folder_lock import temporary_folder
from deadpool_lab.workload.run import WorkloadTrial

SCRIPT = Path(__file__).with_name("slow_step.py")
STEPS = 24
LONG_STEP = 16  # the usual length of steps is known by then
ALARMS = ("fault", "hung", "cut_off", "trainer_lost", "spare_lost")
LOAD = "load"
BUSY_PER_CPU = 4
_BUSY = "while True: pass"
_WRITES = "import os,sys\nf = open(sys.argv[1], 'wb')\nwhile True: f.seek(0); f.write(bytes(1 << 26)); os.fsync(f)"


@contextlib.contextmanager
def load_on_the_machine(folder: Path) -> Iterator[None]:
    commands = [["-c", _BUSY]] * BUSY_PER_CPU * (os.cpu_count() or 1) + [["-c", _WRITES, str(folder / "written")]]
    started = [subprocess.Popen([sys.executable, *command]) for command in commands]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def run(situation: str, seconds: float, load_steps: int, folder: Path) -> dict[str, Any]:
    steps = load_steps if situation == LOAD else STEPS
    long_step = {LOAD: steps, "first_compile": 0}.get(situation, LONG_STEP)
    arguments = ["--steps", str(steps), "--long-step", str(long_step), "--seconds", str(seconds)]
    arguments += [
        "--doing",
        "compile" if situation == "first_compile" else "evaluate" if situation == LOAD else situation,
    ]
    trial = WorkloadTrial(
        JobConfig(nodes=3, spares=1).checked(), arguments, folder, deadline_s=60 + 20 * steps + seconds, script=SCRIPT
    )
    with load_on_the_machine(folder) if situation == LOAD else contextlib.nullcontext():
        trial.run()
    found = [event for event in trial.events() if event["what"] in ALARMS]
    return {"alarms": len(found), "reasons": [event.get("reason", event["what"]) for event in found], "steps": steps}


def main() -> None:
    situations = [LOAD, "first_compile", *DOING]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--situations", nargs="*", choices=situations, default=situations)
    parser.add_argument("--seconds", type=float, default=40.0, help="how long the one step takes")
    parser.add_argument("--load-steps", type=int, default=100, help="steps beside a loaded machine")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = {}
    with temporary_folder("deadpool-benchmark-") as folder:
        for situation in args.situations:
            (folder / situation).mkdir()
            results[situation] = run(situation, args.seconds, args.load_steps, folder / situation)
            print(f"{situation}: {results[situation]}", flush=True)
    alarms = sum(result["alarms"] for result in results.values())
    give_out({"alarms": alarms, "seconds": args.seconds, "situations": results}, args.json)
    if alarms:
        raise SystemExit(f"{alarms} false alarms")


if __name__ == "__main__":
    main()
