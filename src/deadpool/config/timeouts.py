"""All timeouts, and how they follow from the node timeout, the one that a user sets.

A timeout that is given is used, unless it cannot work together with the node timeout: then it is refused with the
reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deadpool.errors import ConfigError

BEATS_PER_TIMEOUT = 5
RETURN_TIMEOUTS = 2
STREAM_TIMEOUTS, STREAM_AT_LEAST_S = 2, 10.0
REAP_S = 10.0
"""The time that a killed process has to be gone: the kernel first frees its device and its pinned memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutRule:
    """A timeout that is a multiple of the node timeout where it is not given, and not less than `at_least_s`."""

    name: str
    times: float
    at_least_s: float
    least_times: float  # if it is given, it has to be at least so many node timeouts
    what_for: str
    why_not_less: str

    def derive(self, node_timeout_s: float) -> float:
        return max(self.times * node_timeout_s, self.at_least_s)


_FOUND_FIRST = "a node that dies meanwhile has to be detected by its silence before others are blamed for waiting"
RULES = (
    TimeoutRule(
        name="unwind_timeout_s",
        times=12,
        at_least_s=20.0,
        least_times=0,
        what_for="seconds for a trainer to come to rest after a fault elsewhere; then it is replaced",
        why_not_less="",
    ),
    TimeoutRule(
        name="prepare_timeout_s",
        times=120,
        at_least_s=600.0,
        least_times=2,
        what_for="seconds for a newcomer to build its model and load its state",
        why_not_less=_FOUND_FIRST,
    ),
    TimeoutRule(
        name="connect_timeout_s",
        times=12,
        at_least_s=30.0,
        least_times=2,
        what_for="seconds for all ranks to rebuild their process groups",
        why_not_less=_FOUND_FIRST,
    ),
    TimeoutRule(
        name="spare_wait_s",
        times=120,
        at_least_s=600.0,
        least_times=1,
        what_for="seconds that the job waits for a spare when none is left; then it ends",
        why_not_less="a node that comes back may be the spare",
    ),
    TimeoutRule(
        name="isolation_timeout_s",
        times=120,
        at_least_s=600.0,
        least_times=2,
        what_for="seconds without any coordinator after which a node ends its trainers",
        why_not_less="the node has to try the other coordinators first",
    ),
)


def derived(node_timeout_s: float, given: Mapping[str, float]) -> dict[str, float]:
    """All timeouts of RULES, in seconds. A value of 0 in `given` means that it was not given."""
    return {rule.name: _checked(rule, given[rule.name], node_timeout_s) for rule in RULES}


def _checked(rule: TimeoutRule, given_s: float, node_timeout_s: float) -> float:
    least_s = rule.least_times * node_timeout_s
    if given_s < 0 or (given_s and given_s < least_s):
        count = "one node timeout" if rule.least_times == 1 else f"{rule.least_times:g} node timeouts"
        reason = f", {count}: {rule.why_not_less}" if rule.why_not_less else ""
        raise ConfigError(
            f"{rule.name}={given_s!r} cannot be used: give at least {least_s:g} s{reason}. With 0 it follows "
            "from the node timeout"
        )
    return given_s or rule.derive(node_timeout_s)


def return_s(node_timeout_s: float) -> float:
    return RETURN_TIMEOUTS * node_timeout_s


def stream_s(node_timeout_s: float) -> float:
    return max(STREAM_TIMEOUTS * node_timeout_s, STREAM_AT_LEAST_S)


def fence_s(node_timeout_s: float, unwind_timeout_s: float) -> float:
    """A node has time to kill and reap a trainer that does not come to rest, before the node itself counts as lost."""
    return unwind_timeout_s + node_timeout_s + REAP_S


def table(node_timeout_s: float, values: Mapping[str, float], hang_timeout_s: float) -> list[tuple[str, str, str]]:
    """One row per timeout for people to read: name, value, what it is for."""
    node, unwind = node_timeout_s, values["unwind_timeout_s"]
    by_steps = "5 slow steps, at least 5 s, if no rank does anything; else 10, at least 60 s"
    hang = _seconds(hang_timeout_s) if hang_timeout_s else by_steps
    rows = [
        ("node timeout", _seconds(node), "silence after which a node is taken for dead (--node-timeout-s)"),
        (
            "heartbeat",
            _seconds(node / BEATS_PER_TIMEOUT),
            f"time between two heartbeats: {BEATS_PER_TIMEOUT} in a node timeout",
        ),
        ("stream", _seconds(stream_s(node)), "silence after which a transfer of copies is given up"),
        ("return", _seconds(return_s(node)), "time for a silent node to come back with the only copies of a rank"),
        ("fence", _seconds(fence_s(node, unwind)), "time for a node to stop all its trainers; then the node is lost"),
        ("hang", hang, "time without one completed step, after which the job is taken to hang"),
    ]
    return rows + [(_in_words(rule.name), _seconds(values[rule.name]), rule.what_for) for rule in RULES]


def _in_words(name: str) -> str:
    return name.removesuffix("_timeout_s").removesuffix("_s").replace("_", " ")


def _seconds(value: float) -> str:
    return f"{value:g} s"
