"""Runs scripts without DeadPool, each as the only rank: a process that has imported torch forks one for each.

Arguments: paths of scripts; each writes its records to the folder of its path without the suffix. Lines of JSON say how
each has ended.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import socket
import sys
import threading
import traceback
from pathlib import Path

import torch
import torch._dynamo
import torch.ao.quantization
import torch.distributed.checkpoint
import torch.nn.utils.parametrizations
import torch.utils.checkpoint
import torchdata.stateful_dataloader  # noqa: F401

import deadpool.trainer.unprotected  # noqa: F401


def main() -> None:
    gc.freeze()  # children share this memory as long as nobody touches it
    for path in map(Path, sys.argv[1:]):
        pid = os.fork()
        if not pid:
            _run(path)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"script": path.stem, "code": os.waitstatus_to_exitcode(status)}), flush=True)


def _run(path: Path) -> None:
    out = path.with_suffix("")
    out.mkdir()
    console = os.open(out / "console.log", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(console, 1)
    os.dup2(console, 2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "alone"}
    torch.set_num_threads(1)
    sys.argv = [str(path), "--out", str(out)]
    code = 1
    try:
        runpy.run_path(str(path), run_name="__main__")
        code = 0
    except SystemExit as stop:  # of a child that the script has forked
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    _join_threads()
    os._exit(code)


def _join_threads() -> None:
    threading._shutdown()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
