"""Whether the ranks of this node come to their protected loop at all. If not, people are told, once per rank: a fault
would cost such a job everything."""

from __future__ import annotations

from deadpool.protocol.agent.state import Station

TELL_AFTER_S = 60.0


class ProtectionWatch:
    """Looked at with every heartbeat."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._seen: dict[str, float] = {}  # trainers that run the script from its first line: since when
        self._told: set[int | None] = set()  # ranks

    def look(self, now: float) -> None:
        seated = [t for t in self._station.crew.seated() if t.under_real_groups and t.begun and not t.has_state]
        self._seen = {trainer.name: self._seen.get(trainer.name, now) for trainer in seated}
        for trainer in seated:
            seconds = now - self._seen[trainer.name]
            if seconds >= TELL_AFTER_S and trainer.rank not in self._told:
                self._told.add(trainer.rank)
                self._station.emit("not_protected_yet", rank=trainer.rank, seconds=round(seconds))
