"""Where the time of a step goes on the device and in the trainer's threads, from a trace of some steps.

Every moment of the device's main stream is either a kernel or a gap between kernels. So the difference between
protected and unprotected steps is either in kernels, which run slower beside a copy, or in gaps, in which the device
waits for the host.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

_LONG_GAP_NS = 5_000  # shorter ones are between any two kernels
_GROUPS = {
    "matrix products": ("gemm", "nvjet", "cutlass", "xmma"),
    "attention": ("flash", "fmha", "attention"),
    "optimizer": ("multi_tensor_apply",),
    "copies to the host": ("dtoh", "device -> "),
    "other copies": ("memcpy", "memset"),
}


@dataclass(frozen=True, slots=True, order=True)
class Span:
    start_ns: int
    end_ns: int
    name: str
    stream: int


@dataclass(slots=True)
class Trace:
    """What one stretch of steps did."""

    spans: list[Span] = field(default_factory=list)
    thread_s: dict[str, float] = field(default_factory=dict)

    def per_step_ms(self, steps: int) -> dict[str, Any]:
        main = Counter(span.stream for span in self.spans).most_common(1)[0][0]
        ours = sorted(span for span in self.spans if span.stream == main)
        aside = [span for span in self.spans if span.stream != main]
        gaps = list(_gaps_ns(ours))
        kinds: Counter[str] = Counter()
        for span in ours:
            kinds[_group(span.name)] += span.end_ns - span.start_ns
        per_step = 1e-6 / steps
        return {
            "whole": (ours[-1].end_ns - ours[0].start_ns) * per_step,
            "kernels": {kind: total * per_step for kind, total in sorted(kinds.items())},
            "long gaps": sum(gap for gap in gaps if gap >= _LONG_GAP_NS) * per_step,
            "short gaps": sum(gap for gap in gaps if gap < _LONG_GAP_NS) * per_step,
            "on other streams": sum(span.end_ns - span.start_ns for span in aside) * per_step,
            "host threads": {name: 1e3 * seconds / steps for name, seconds in self.thread_s.items()},
        }


@contextmanager
def traced(device: torch.device) -> Iterator[Trace]:
    """Fills the trace when the block has ended. Traces the device only, so that the host is hardly slowed down."""
    trace, before = Trace(), _thread_s()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        yield trace
        torch.cuda.synchronize(device)
        after = _thread_s()
    trace.thread_s = {name: after[name] - before.get(name, 0.0) for name in after}
    found = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    trace.spans = [
        Span(each.start_ns(), each.end_ns(), each.name(), each.device_resource_id())
        for each in found
        if each.device_type() == torch.autograd.DeviceType.CUDA
    ]


def _gaps_ns(spans: Iterable[Span]) -> Iterator[int]:
    for first, second in itertools.pairwise(spans):
        if second.start_ns > first.end_ns:
            yield second.start_ns - first.end_ns


def _group(name: str) -> str:
    lower = name.lower()
    return next((group for group, words in _GROUPS.items() if any(word in lower for word in words)), "other kernels")


def _thread_s() -> dict[str, float]:
    """CPU time of each thread of this process so far."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found: Counter[str] = Counter()
    for folder in Path("/proc/self/task").iterdir():
        running_ns = int((folder / "schedstat").read_text().split()[0])
        found[names.get(int(folder.name), (folder / "comm").read_text().strip())] += running_ns / 1e9
    return dict(found)
