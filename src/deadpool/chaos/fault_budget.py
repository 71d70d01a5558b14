"""How much may be hit at once: never more than can be recovered, else the runner would prove nothing. No I/O.

A rank's state is on its node and on two others. So two nodes may be lost before the copies are complete again, counting
those that were hit and have not healed, whether or not they turn out to be lost.
"""

from __future__ import annotations

from collections.abc import Iterable

BURST = 3
"""Faults that have not healed. More of them without a step in between would look like a job that gets nowhere."""


def allows(endangered: Iterable[frozenset[str]], more: frozenset[str], *, losses_at_once: int) -> bool:
    """`endangered`: for each fault that has not healed the nodes whose copies may go with it; `more`: of one more."""
    active = list(endangered)
    return len(active) < BURST and len(more.union(*active)) <= losses_at_once
