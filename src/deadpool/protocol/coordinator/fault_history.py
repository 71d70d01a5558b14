"""Nodes that fail again and again, and what becomes of them: quarantine.

A quarantined node keeps serving the copies that it has. It is given ranks, and with them the copies of others, only
where no other node is left: a job on a bad node is better than none. It stays quarantined under its name until the
job ends.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How many faults of one node, within which time, are no accidents any more. 0: never."""

    faults: int = 3
    within_s: float = 3600.0


class Conduct:
    def __init__(self, tolerance: Tolerance) -> None:
        self._tolerance = tolerance
        self._faults: dict[str, list[tuple[float, str]]] = {}
        self._quarantined: dict[str, str] = {}  # node -> why

    def blame(self, node: str, reason: str, now: float) -> None:
        """For a trainer that died or hung there, for a broken device, or for the loss of the node itself."""
        faults = self._faults.setdefault(node, [])
        faults.append((now, reason))
        self._faults[node] = [(at, why) for at, why in faults if now - at <= self._tolerance.within_s]

    def excuse(self, seconds: float) -> None:
        """We did not run for so long."""
        self._faults = {n: [(at + seconds, why) for at, why in faults] for n, faults in self._faults.items()}

    def charge(self, node: str) -> str | None:
        """What speaks against it, if that is enough."""
        faults, tolerance = self._faults.get(node, []), self._tolerance
        if not tolerance.faults or len(faults) < tolerance.faults:
            return None
        return f"{len(faults)} faults within {tolerance.within_s:g} s, the last one: {faults[-1][1]}"

    def quarantine(self, node: str, reason: str) -> None:
        self._quarantined[node] = reason

    def why(self, node: str) -> str | None:
        """It is quarantined; None: it is not."""
        return self._quarantined.get(node)

    def is_quarantined(self, node: str) -> bool:
        return node in self._quarantined
