"""A script that knows nothing of DeadPool: torch alone. Says once per process that it was here."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

out = Path(sys.argv[sys.argv.index("--out") + 1])
out.mkdir(parents=True, exist_ok=True)
(out / f"began-{os.environ['RANK']}-{os.getpid()}").touch()

import torch  # noqa: E402
from torch.distributed import all_reduce, destroy_process_group, init_process_group  # noqa: E402

init_process_group("gloo")
total = torch.ones(1)
all_reduce(total)
time.sleep(3.0)  # time enough for a spare to come up, which has nothing to do here
all_reduce(total)
(out / f"total-{os.environ['RANK']}").write_text(str(total.item()))
destroy_process_group()
sys.exit(0)
