"""Snapshots that a newcomer could not get although inventories name their sources, and none of these was found damaged.

The next plan would name the same sources again. A source may be out of reach for a moment, so that is tried again; but
after a few failures the next plan does without them, as if these copies were lost: it takes other sources, or a version
for which they are not needed. That may cost steps that were not committed, and no committed one: where nothing else is
there, the same sources are tried until the job has made no progress for too long.
"""

from __future__ import annotations

from collections import Counter

from deadpool.protocol.coordinator.recovery.global_plan import GlobalPlan
from deadpool.protocol.identity import Version
from deadpool.protocol.messages import Fetch

FAILURES = 2
"""The failures that give up a version that is not committed."""
FAILURES_OF_COMMITTED = 3
"""The failures that give up the floor, where ranks can stand at something newer: what protects the job until that is
replicated is given up last. The number is lower than the recoveries without progress that end the job (`RETRIES`)."""


class UnreadCopies:
    def __init__(self) -> None:
        self._failures: Counter[Fetch] = Counter()
        self._committed: Version | None = None

    def note(self, plan: GlobalPlan, node: str, rank: int, version: Version) -> bool:
        """No source of the plan gave this node the version. A source that is dropped, or a node that comes, makes it
        another fetch, which has not failed yet. Returns whether plans do without it from here on."""
        kept, self._committed = (plan.resume, plan.permit.watermark), plan.permit.watermark
        self._failures = Counter({f: count for f, count in self._failures.items() if f.copy.seal.version in kept})
        orders = plan.parts[node].orders if node in plan.parts else ()
        fetches = [fetch for order in orders if order.rank == rank for fetch in order.fetch]
        failed = [fetch for fetch in fetches if fetch.copy.seal.version == version and not fetch.fallback]
        self._failures.update(failed)
        return any(self._failures[fetch] == self._limit(fetch) for fetch in failed)

    @property
    def given_up(self) -> frozenset[Fetch]:
        """Fetches that a plan does without."""
        return frozenset(fetch for fetch, count in self._failures.items() if count >= self._limit(fetch))

    def _limit(self, fetch: Fetch) -> int:
        return FAILURES_OF_COMMITTED if fetch.copy.seal.version == self._committed else FAILURES
