"""What speaks for an illness of a node: kinds of signs, from which figures they follow, and how grave each one is.

A *counter* grows by errors. So many of them within a short time are an *episode*, a storm of correctable ECC errors
for example; episodes are counted over a window. A *gauge* is high or low at a time; a sign of it begins above one
limit and ends below another, so that a figure that trembles at a limit makes one sign and not many.

Grades say how sure it is that the node will fail. They are a policy and no measurement: no failure log that would give
a rate for each kind is public, and each fleet has its own.

    DOUBTFUL  it happens to sound nodes too (heat, memory pressure, an out-of-memory kill, one storm, slow steps)
    LIKELY    it repeats (storms, link errors, resets of a network card), or a device does not answer
    CERTAIN   hardware has failed: an error that ECC could not correct, an Xid of the GPU itself, a lost GPU
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from deadpool.protocol.messages.progress import Sign

SOUND, DOUBTFUL, LIKELY, CERTAIN = range(4)
REPEATS = 3
"""The number of episodes within the window that are no accident any more."""

CORRECTABLE, UNCORRECTABLE, XID, OOM = "correctable", "uncorrectable", "xid", "oom"
LINK_ERRORS, LINK_RESETS, DEVICE_SILENT, GPU_LOST = "link_errors", "link_resets", "device_silent", "gpu_lost"
HOT, THROTTLED, MEMORY_PRESSURE, MEMORY_LOW, SLOW = "hot", "throttled", "memory_pressure", "memory_low", "slow"


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterRule:
    kind: str
    episode: int  # errors between two looks that make one
    first: int  # the grade of one episode
    repeated: int  # the grade of REPEATS of them
    words: str  # after the name of the node, for one episode | for several


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeRule:
    kind: str
    begins: float  # the sign begins at this value, and ends at the other
    ends: float
    grade: int
    words: str

    def is_high(self, value: float, *, shown: bool) -> bool:
        limit = self.ends if shown else self.begins
        return value >= limit if self.begins > self.ends else value <= limit


COUNTERS = (
    CounterRule(
        kind=CORRECTABLE,
        episode=10,
        first=DOUBTFUL,
        repeated=LIKELY,
        words="has 1 correctable ECC storm in {window}|has {count} correctable ECC storms in {window}",
    ),
    CounterRule(
        kind=UNCORRECTABLE,
        episode=1,
        first=CERTAIN,
        repeated=CERTAIN,
        words="has had memory errors that ECC could not correct",
    ),
    CounterRule(
        kind=XID,
        episode=1,
        first=CERTAIN,
        repeated=CERTAIN,
        words="has had a hardware error of a GPU|has had {count} hardware errors of GPUs in {window}",
    ),
    CounterRule(
        kind=OOM,
        episode=1,
        first=DOUBTFUL,
        repeated=DOUBTFUL,
        words="has had a process killed for lack of memory",
    ),
    CounterRule(
        kind=LINK_ERRORS,
        episode=20,
        first=DOUBTFUL,
        repeated=LIKELY,
        words="has 1 burst of network errors in {window}|has {count} bursts of network errors in {window}",
    ),
    CounterRule(
        kind=LINK_RESETS,
        episode=1,
        first=DOUBTFUL,
        repeated=LIKELY,
        words="has had 1 reset of a network card in {window}|has had {count} resets of network cards in {window}",
    ),
)
GAUGES = (
    GaugeRule(kind=HOT, begins=1.0, ends=0.5, grade=DOUBTFUL, words="has a GPU that is slowed down by heat"),
    GaugeRule(kind=THROTTLED, begins=1.0, ends=0.5, grade=DOUBTFUL, words="has a GPU that its hardware slows down"),
    GaugeRule(kind=MEMORY_PRESSURE, begins=20.0, ends=5.0, grade=DOUBTFUL, words="waits for memory most of the time"),
    GaugeRule(kind=MEMORY_LOW, begins=0.03, ends=0.06, grade=DOUBTFUL, words="has next to no memory left"),
    GaugeRule(kind=DEVICE_SILENT, begins=1.0, ends=0.5, grade=LIKELY, words="has a GPU that does not answer"),
    GaugeRule(kind=GPU_LOST, begins=1.0, ends=0.5, grade=CERTAIN, words="has a GPU that is lost"),
)
"""MEMORY_PRESSURE is the share of time, in percent, in which all processes waited for memory (`full avg60` of the
kernel's pressure stall information). MEMORY_LOW is the share of memory that is left."""

_WORDS = {rule.kind: rule.words for rule in (*COUNTERS, *GAUGES)} | {SLOW: "is slow all the time"}
KINDS = tuple(_WORDS)
SIDES_WITH_MEMORY = (MEMORY_PRESSURE, MEMORY_LOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSample:
    """What one look at the node's sources has found. Counters count from when the agent began."""

    counters: Mapping[str, int] = field(default_factory=dict)
    gauges: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)  # by kind: the newest, in the words of its source
    memory_bytes: int = 0
    available_bytes: int = 0


def in_words(sign: Sign, window_s: float) -> str:
    """Describes a sign in words that follow the node's name."""
    words = _WORDS.get(sign.kind, sign.kind)
    one, _, several = words.partition("|")
    told = (one if sign.count == 1 or not several else several).format(count=sign.count, window=_period(window_s))
    return f"{told} ({sign.detail})" if sign.detail else told


def gravest(signs: tuple[Sign, ...]) -> int:
    return max((sign.grade for sign in signs), default=SOUND)


def _period(seconds: float) -> str:
    return f"{seconds / 60:g} minutes" if seconds >= 120 else f"{seconds:g} s"
