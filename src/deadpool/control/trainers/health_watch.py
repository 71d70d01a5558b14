"""Looks at this node's health from time to time, in threads: no file and no driver can hold the agent up.

Files and GPUs have a thread each. A driver that does not answer is itself a sign: then the last look is old. A look
that fails, by an error of ours or of the driver's package, is no sign of anything: it is told, and nothing follows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from deadpool.host.health.gpus import open_gpus
from deadpool.host.health.sampling import GpuSampler, NodeSampler, merged
from deadpool.protocol.health import DEVICE_SILENT, HealthSample

LOOK_EVERY_S = 2.0
SILENT_S = 60.0
"""A GPU whose driver has not answered for so long does not answer."""
_CLOSE_S = 1.0

Report = Callable[[HealthSample], None]
Failed = Callable[[str, str], None]


class Sampler(Protocol):
    def look(self) -> HealthSample: ...


class HealthWatch:
    """Calls `report` from a thread after each look, and `failed` with what could not be looked at, and why, when that
    has changed."""

    def __init__(self, root: Path, report: Report, failed: Failed, *, look_every_s: float = LOOK_EVERY_S) -> None:
        self._root, self._report, self._failed, self._look_every_s = root, report, failed, look_every_s
        self._reasons: dict[str, str] = {}
        self._closing = threading.Event()
        self._gpu_sample: HealthSample | None = None
        self._gpu_looked_at = 0.0
        self._buses_of_others: frozenset[str] = frozenset()
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
            while True:
                try:
                    sampler.buses_of_others = self._buses_of_others
                    self._report(self._with_gpus(sampler.look()))
                except Exception as error:  # the outer edge of a thread
                    self._tell("files", error)
                if self._closing.wait(self._look_every_s):
                    return
        finally:
            sampler.close()

    def _watch_gpus(self) -> None:
        try:
            if (gpus := open_gpus()) is None:
                return
            self._buses_of_others = gpus.buses_of_others()
        except Exception as error:  # the outer edge of a thread
            self._tell("GPUs", error)
            return
        try:
            sampler = GpuSampler(gpus)
            self._gpu_looked_at = time.monotonic()
            self._look_at_gpus(sampler)
            while not self._closing.wait(self._look_every_s):
                self._look_at_gpus(sampler)
        finally:
            gpus.close()

    def _look_at_gpus(self, sampler: Sampler) -> None:
        try:
            self._gpu_sample = sampler.look()
            self._gpu_looked_at = time.monotonic()
        except Exception as error:  # the outer edge of a thread
            self._gpu_looked_at = 0.0  # until a look succeeds they count as not looked at, which is not silence
            self._gpu_sample = HealthSample(counters=self._gpu_sample.counters) if self._gpu_sample else None
            self._tell("GPUs", error)

    def _tell(self, source: str, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        if self._reasons.get(source) != reason:
            self._reasons[source] = reason
            self._failed(source, reason)

    def _with_gpus(self, sample: HealthSample) -> HealthSample:
        if not (looked_at := self._gpu_looked_at):
            return merged([sample, self._gpu_sample]) if self._gpu_sample else sample
        silent_s = time.monotonic() - looked_at
        silent = HealthSample(
            gauges={DEVICE_SILENT: float(silent_s > SILENT_S)},
            details={DEVICE_SILENT: f"its driver has not answered for {silent_s:.0f} s"},
        )
        return merged([sample, self._gpu_sample or HealthSample(), silent])
