"""One step of rank 1 takes much longer than the others, the first time that it is done: it waits for ever, or has work
to do that looks like a hang from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import small_job
from small_job import inputs_of, make_model, make_parser, reduce_over, train
from torch import Tensor, nn

import deadpool

LONG_STEP, SECONDS = 30, 8.0
small_job.STEPS = 36
BUSY = f"import time\nend = time.monotonic() + {SECONDS}\nwhile time.monotonic() < end: pass"


def evaluate() -> None:
    exec(BUSY, {})


def compile_something() -> None:
    """torch.compile waits for processes of its own while they compile."""
    subprocess.run([sys.executable, "-c", BUSY], check=True)


def save_slowly() -> None:
    end = time.monotonic() + SECONDS
    with (args.out / "checkpoint").open("wb") as file:
        while time.monotonic() < end:
            file.write(bytes(1 << 20))
            os.fsync(file.fileno())
            time.sleep(0.3)


def wait_for_ever() -> None:
    threading.Event().wait()


DOING = {"wait": wait_for_ever, "evaluate": evaluate, "compile": compile_something, "save": save_slowly}


def reduce(model: nn.Module, step: int) -> None:
    mark = Path(args.out) / "done"
    if step == LONG_STEP and pool.rank == 1 and not mark.exists():
        mark.touch()
        DOING[args.doing]()
    time.sleep(0.1)
    reduce_over(None, model)


def following(step: int) -> Tensor:
    return inputs_of(step, pool.rank)


parser = make_parser()
parser.add_argument("--doing", choices=list(DOING), required=True)
args = parser.parse_args()
pool = deadpool.join(backend="gloo")
train(pool, make_model(), args.out, reduce=reduce, following=following)
