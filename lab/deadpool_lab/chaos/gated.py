"""The workload with gates: rank 0 stops before the batch of every gate step until the next injection is prepared.

WORKLOAD_GATES names the folder of the gates. A gate is `reached-STEP` when the rank stands there and `open-STEP` when
it may go on; the other ranks meanwhile stand in a collective. A fault lets it go on too: it will come back. A step
between has a gate if there is a file `gate-STEP`: of the version at which ranks stand, a capture is taken for certain.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from deadpool.demo.gpt import Size
from deadpool.protocol.trainer_core import TrainerCore
from deadpool.trainer import current
from deadpool_lab.workload import train
from deadpool_lab.workload.layouts.assembly import Assembly
from deadpool_lab.workload.run import pause

GATE_EVERY = 2


class GatedBatches:
    """Batches, with a gate before those of every gate step."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __next__(self) -> Any:
        job = current.job
        if job is not None and not job.session.groups.detached and job.session.rank == 0:
            _wait_at_gate(job.number, job.session.core)
        return next(self._batches)


def _wait_at_gate(step: int, core: TrainerCore) -> None:
    folder = Path(os.environ["WORKLOAD_GATES"])
    is_gate = step % GATE_EVERY == 0 or (folder / f"gate-{step}").exists()
    if step == 0 or not is_gate or not folder.exists():
        return
    pause(f"before gate {step}")
    (folder / f"reached-{step}").touch()
    while not (folder / f"open-{step}").exists() and not core.is_aborted:
        time.sleep(0.005)
    pause(f"after gate {step}")


def open_data(loader: str, size: Size, built: Assembly) -> tuple[Any, Any]:
    batches, data = _open_data(loader, size, built)
    return GatedBatches(batches), data


if __name__ == "__main__":
    _open_data = train.open_data
    train.open_data = open_data
    train.main()
