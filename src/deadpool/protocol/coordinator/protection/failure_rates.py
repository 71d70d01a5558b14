"""How often each node fails: counts per node, rack and kind that fade, over a prior. A pure value of what was observed.

A node's rate is that of a gamma prior on a Poisson rate: (prior failures + weighted failures) / (prior time + time
observed). Failures and time both fade with HALF_LIFE_S, so that a node which was repaired counts as sound again after
some days. A failure of another node in the same rack counts a little for all nodes of the rack: power, cooling and
switches are shared.

The prior is the published rate of a large fleet: 419 unexpected interruptions in 54 days on 2,048 nodes (Llama 3), one
per node in 264 days. It weighs as much as PRIOR_S of observation, so that two failures of one node soon outweigh it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from deadpool.protocol.causes import FaultKind

PRIOR_PER_S = 419 / (54 * 86400 * 2048)
PRIOR_S = 86400.0
HALF_LIFE_S = 12 * 3600.0
RACK_SHARE = 0.2
"""What a failure of another node in the rack counts."""
KINDS = {FaultKind.NODE: 1.0, FaultKind.DEVICE: 1.0, FaultKind.TRAINER: 0.5, FaultKind.HANG: 0.5}
"""What is told apart, and its weight. A process dies for many reasons, of which its node is one."""
NEGLIGIBLE = 0.01
"""A failure that has faded to this share is forgotten."""


@dataclass(frozen=True, slots=True)
class Failure:
    at: float
    node: str
    rack: str | None
    kind: FaultKind  # one of KINDS

    def weight(self, now: float) -> float:
        return KINDS[self.kind] * _faded(now - self.at)


class FailureRates:
    def __init__(self) -> None:
        self._failures: list[Failure] = []
        self._since: float | None = None  # when observation began

    def begin(self, now: float) -> None:
        if self._since is None:
            self._since = now

    def note(self, node: str, rack: str | None, kind: FaultKind, now: float) -> None:
        """Whatever ends a process, and is neither the device nor a hang, counts as the loss of a trainer."""
        kind = kind if kind in KINDS else FaultKind.TRAINER
        self.begin(now)
        self._failures = [each for each in self._failures if each.weight(now) > NEGLIGIBLE]
        self._failures.append(Failure(now, node, rack, kind))

    def discount_stall(self, seconds: float) -> None:
        """Rule 20, timeouts: the coordinator itself did not run for so long."""
        self._failures = [Failure(each.at + seconds, each.node, each.rack, each.kind) for each in self._failures]
        self._since = self._since + seconds if self._since is not None else None

    @property
    def nodes(self) -> list[str]:
        """Returns the nodes that have failed, in the order of their first failure."""
        return list(dict.fromkeys(each.node for each in self._failures))

    def per_hour(self, node: str, rack: str | None, now: float) -> float:
        """Expected failures of this node in an hour."""
        own = sum(each.weight(now) for each in self._failures if each.node == node)
        beside = sum(each.weight(now) for each in self._in_rack(rack) if each.node != node)
        failures = PRIOR_PER_S * PRIOR_S + own + RACK_SHARE * beside
        return 3600 * failures / (PRIOR_S + self._observed_s(now))

    def counts(self, node: str, now: float) -> dict[str, int]:
        """By kind, of failures that still count. For status and sentences."""
        return dict(
            Counter(each.kind.value for each in self._failures if each.node == node and each.weight(now) > NEGLIGIBLE)
        )

    def _in_rack(self, rack: str | None) -> Iterator[Failure]:
        return (each for each in self._failures if rack is not None and each.rack == rack)

    def _observed_s(self, now: float) -> float:
        """Faded as failures are: no more than HALF_LIFE_S / ln 2."""
        age_s = max(0.0, now - self._since) if self._since is not None else 0.0
        return HALF_LIFE_S / math.log(2) * (1 - _faded(age_s))


def _faded(age_s: float) -> float:
    return float(0.5 ** (max(0.0, age_s) / HALF_LIFE_S))
