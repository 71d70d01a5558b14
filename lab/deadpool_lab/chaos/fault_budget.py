"""How many faults may be open at once: never more than can be recovered, else a failure would prove nothing. No I/O.

A rank's state is on its node and on two others. So two nodes may be lost before the copies are complete again, counting
every node that was hit and has not recovered, whether or not it turns out to be lost.
"""

from __future__ import annotations

from collections.abc import Iterable

BURST = 3
"""Faults that may be open. More of them without a completed step would rightly end a job for lack of progress."""


def allows(endangered: Iterable[frozenset[str]], more: frozenset[str], *, losses_at_once: int) -> bool:
    """`endangered` are the nodes whose copies each open fault may destroy, `more` those of the next fault."""
    active = list(endangered)
    return len(active) < BURST and len(more.union(*active)) <= losses_at_once
