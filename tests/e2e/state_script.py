"""Writes down what process it finds itself in: at its first line, when torch is there, in every step and at its end.

For `deadpool run` and torchrun alike. Draws from every global generator in each step, and takes long enough for any
thread beside it to have done something.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import hashlib
import json
import locale
import logging
import multiprocessing
import os
import pickle
import random
import resource
import signal
import socket
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
STEPS = 5


class OfThisScript:
    """Can be pickled if `__main__` is what it should be."""


def ordinary() -> dict[str, Any]:
    umask = os.umask(0o22)
    os.umask(umask)
    main = sys.modules["__main__"]
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv[1:],
        "path": sys.path,
        "flags": repr(sys.flags),
        "executable": sys.executable,
        "hooks": [sys.excepthook.__name__, sys.unraisablehook.__name__, threading.excepthook.__name__],
        "limits": [sys.getrecursionlimit(), sys.getswitchinterval(), socket.getdefaulttimeout()],
        "stdout": [sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering, sys.stdout.write_through],
        "stderr": [sys.stderr.encoding, sys.stderr.errors, sys.stderr.line_buffering, sys.stderr.write_through],
        "main": {
            name: repr(getattr(main, name, "absent")).split(" object at ")[0]
            for name in ("__name__", "__file__", "__spec__", "__package__", "__cached__", "__doc__", "__loader__")
        },
        "main is ours": main.__dict__ is globals(),
        "pickled": pickle.dumps(OfThisScript).hex(),
        "cwd": str(Path.cwd()),
        "umask": umask,
        "nice": os.nice(0),
        "cpus": sorted(os.sched_getaffinity(0)),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "environment": dict(os.environ),
        "signals": {str(int(each)): _name(signal.getsignal(each)) for each in signal.valid_signals()},
        "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "warnings": [[each[0], str(each[1]), each[2].__name__, str(each[3]), each[4]] for each in warnings.filters],
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks)],
        "locale": locale.setlocale(locale.LC_ALL),
        "logging": [[type(each).__name__ for each in logging.getLogger().handlers], logging.getLogger().level],
        "faulthandler": faulthandler.is_enabled(),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "tracing": [sys.gettrace() is None, sys.getprofile() is None],
    }


def _name(handler: Any) -> str:
    return getattr(handler, "__name__", None) or str(handler)


def of_torch() -> dict[str, Any]:
    import numpy as np
    import torch
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return {
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.get_default_device()),
        "torch threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "modes": [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled()],
        "deterministic": [torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()],
        "dispatch modes": len(_get_current_dispatch_mode_stack()),
        "first seed": torch.initial_seed(),
        "generators": {
            "python": _digest(repr(random.getstate())),
            "numpy": _digest(repr(np.random.get_state(legacy=False))),
            "torch": _digest(torch.get_rng_state().numpy().tobytes().hex()),
        },
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def note(when: str, **found: Any) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{os.environ['RANK']}.{when}.{os.getpid()}.json"
    path.write_text(json.dumps(found, default=str))


def main() -> None:
    import numpy as np
    import torch
    import torch.distributed as dist

    import deadpool

    unseeded = of_torch()
    unseeded.pop("generators")  # python's and numpy's begin anywhere
    note("imported", **ordinary(), **unseeded)
    pool = deadpool.join()
    random.seed(pool.rank)
    np.random.seed(pool.rank)
    torch.manual_seed(pool.rank)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    job = pool.protect(model=model, optimizer=optimizer)
    for step in job.steps(STEPS):
        with step:
            if not step.dry:
                note(f"step{step.number}", **ordinary(), **of_torch())
                wait_at_gate(step.number, pool.rank)
                time.sleep(0.3)
            scale = random.random() + np.random.random()
            loss = model(torch.randn(4, 8) * scale).square().mean()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
    note("end", **ordinary(), **of_torch())
    dist.destroy_process_group()


def wait_at_gate(step: int, rank: int) -> None:
    """Imported only here: what this script finds must not depend on what its tests need."""
    import gates

    if (step, rank) == (3, 1):
        gates.wait_at(step)


if __name__ == "__main__":
    note("first", **ordinary())
    atexit.register(lambda: note("exit", main=sys.modules["__main__"].__dict__ is globals(), argv=sys.argv))
    main()
