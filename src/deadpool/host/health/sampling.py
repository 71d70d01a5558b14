"""One look at all sources of a node's health, as the value that the agent's core decides from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from deadpool.host.health import kernel
from deadpool.host.health.gpus import Gpus
from deadpool.host.health.kernel import KernelLog, classify
from deadpool.protocol.health import MEMORY_LOW, MEMORY_PRESSURE, HealthSample


class Totals:
    """Counters of several sources as one per kind, counted from the first look at each source. A source that begins at
    0 again, since its device was reset, takes nothing back."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], int] = {}
        self.by_kind: dict[str, int] = {}

    def add(self, counters: Iterable[tuple[str, str, int]]) -> None:
        for kind, source, total in counters:
            before = self._last.get((kind, source), total)
            self._last[kind, source] = total
            self.grow(kind, max(0, total - before))

    def grow(self, kind: str, count: int) -> None:
        self.by_kind[kind] = self.by_kind.get(kind, 0) + count


class NodeSampler:
    """The files of one node."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._log = KernelLog(root)
        self._totals = Totals()
        self._details: dict[str, str] = {}
        self.buses_of_others: frozenset[str] = frozenset()
        """GPUs of other jobs: what the kernel says of them does not count."""

    def close(self) -> None:
        self._log.close()

    def look(self) -> HealthSample:
        self._totals.add(kernel.counters_of(self._root))
        for line in self._log.new_lines():
            if (found := classify(line)) is not None and found.bus not in self.buses_of_others:
                self._totals.grow(found.kind, found.count)
                self._details[found.kind] = found.detail
        gauges, memory = {}, kernel.memory_of(self._root)
        if (pressure := kernel.pressure_of(self._root)) is not None:
            gauges[MEMORY_PRESSURE] = pressure
        total, left = memory if memory is not None else (0, 0)
        if total:
            gauges[MEMORY_LOW] = left / total
        return HealthSample(
            counters=dict(self._totals.by_kind),
            gauges=gauges,
            details=dict(self._details),
            memory_bytes=total,
            available_bytes=left,
        )


class GpuSampler:
    """The GPUs of one node, apart from its files: a driver may never answer."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus, self._totals = gpus, Totals()

    def look(self) -> HealthSample:
        self._totals.add(self._gpus.counters())
        gauges: dict[str, float] = {}
        details: dict[str, str] = {}
        for kind, value, words in self._gpus.gauges():
            if value >= gauges.get(kind, 0.0):
                gauges[kind] = value
                details |= {kind: words} if value else {}
        return HealthSample(counters=dict(self._totals.by_kind), gauges=gauges, details=details)


def merged(samples: Iterable[HealthSample]) -> HealthSample:
    counters: dict[str, int] = {}
    gauges: dict[str, float] = {}
    details: dict[str, str] = {}
    memory_bytes, available_bytes = 0, 0
    for sample in samples:
        for kind, count in sample.counters.items():
            counters[kind] = counters.get(kind, 0) + count
        gauges |= sample.gauges
        details |= sample.details
        memory_bytes, available_bytes = (
            max(memory_bytes, sample.memory_bytes),
            max(available_bytes, sample.available_bytes),
        )
    return HealthSample(
        counters=counters,
        gauges=gauges,
        details=details,
        memory_bytes=memory_bytes,
        available_bytes=available_bytes,
    )
