"""Looks at this node's health from time to time, in threads: no file and no driver can hold the agent up.

Files and GPUs have a thread each. A driver that does not answer is itself a sign: then the last look is old.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from deadpool.health.gpus import open_gpus
from deadpool.health.sampling import GpuSampler, NodeSampler, merged
from deadpool.protocol.health import DEVICE_SILENT, HealthSample

LOOK_EVERY_S = 2.0
SILENT_S = 60.0
"""A GPU whose driver has not answered for so long does not answer."""
_CLOSE_S = 1.0

Report = Callable[[HealthSample], None]


class Sampler(Protocol):
    def look(self) -> HealthSample: ...


class HealthWatch:
    """Calls `report` from a thread after each look."""

    def __init__(self, root: Path, report: Report, *, look_every_s: float = LOOK_EVERY_S) -> None:
        self._root, self._report, self._look_every_s = root, report, look_every_s
        self._closing = threading.Event()
        self._gpu_sample: HealthSample | None = None
        self._gpu_looked_at = 0.0
        self._threads = [
            threading.Thread(target=self._watch_files, name="deadpool-health", daemon=True),
            threading.Thread(target=self._watch_gpus, name="deadpool-health-gpus", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """A thread whose driver never answers ends with the process."""
        self._closing.set()
        for thread in self._threads:
            thread.join(_CLOSE_S)

    def _watch_files(self) -> None:
        sampler = NodeSampler(self._root)
        try:
            self._report(self._with_gpus(sampler.look()))
            while not self._closing.wait(self._look_every_s):
                self._report(self._with_gpus(sampler.look()))
        finally:
            sampler.close()

    def _watch_gpus(self) -> None:
        if (gpus := open_gpus()) is None:
            return
        try:
            sampler = GpuSampler(gpus)
            while True:
                self._gpu_looked_at = time.monotonic()
                self._gpu_sample = sampler.look()
                self._gpu_looked_at = time.monotonic()
                if self._closing.wait(self._look_every_s):
                    return
        finally:
            gpus.close()

    def _with_gpus(self, sample: HealthSample) -> HealthSample:
        if not self._gpu_looked_at:
            return sample
        silent_s = time.monotonic() - self._gpu_looked_at
        silent = HealthSample(
            gauges={DEVICE_SILENT: float(silent_s > SILENT_S)},
            details={DEVICE_SILENT: f"its driver has not answered for {silent_s:.0f} s"},
        )
        return merged([sample, self._gpu_sample or HealthSample(), silent])
