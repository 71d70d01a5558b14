"""Runs a script under plain torch, as one rank, so that it ends for certain: what other runs are compared with.

torch hangs where an object in C++, such as the Reducer of a DDP, is the last owner of a gloo group that was just used
(docs/design-notes.md). A script that destroys its groups at the end of main() comes to that. Here every group that was
made stays, and the process ends without destructors. What the script computes is not touched.

`python -m deadpool_lab.workload.plain_torch SCRIPT ARGUMENTS...`, for torchrun.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import runpy
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist

_kept: list[Any] = []


def keep_groups() -> None:
    """Keeps every group of this process from being freed, from now on."""
    c10d: Any = dist.distributed_c10d
    make = c10d._new_process_group_helper

    def make_and_keep(*arguments: Any, **keywords: Any) -> Any:
        made = make(*arguments, **keywords)
        _kept.append(made)
        return made

    c10d._new_process_group_helper = make_and_keep


def run_to_end(script: str, arguments: list[str]) -> NoReturn:
    """Runs the script and ends the process with its exit code. At SIGABRT it prints its stacks."""
    faulthandler.enable()
    keep_groups()
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    _leave(_run(script))


def _run(script: str) -> int:
    try:
        runpy.run_path(script, run_name="__main__")
        return 0
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1


def _leave(code: int) -> NoReturn:
    """Waits for the script's threads and runs its exit handlers, as the interpreter would, but no destructors."""
    threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    run_to_end(sys.argv[1], sys.argv[2:])
