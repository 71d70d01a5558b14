"""A script that uses torch alone and does not know DeadPool. Every process that runs it leaves a file that says so."""

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
while not (out / "spare-is-up").exists():  # a spare that ran this script too would have begun by then
    time.sleep(0.01)
all_reduce(total)
(out / f"total-{os.environ['RANK']}").write_text(str(total.item()))
destroy_process_group()
sys.exit(0)
