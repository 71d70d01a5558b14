"""Warns, once per rank, when a rank of this node does not reach its protected loop: a fault would cost such a job all
of its work."""

from __future__ import annotations

from deadpool.protocol.agent.state import AgentState

WARN_AFTER_S = 60.0


class ProtectionWatch:
    """Checked with every heartbeat."""

    def __init__(self, state: AgentState) -> None:
        self._state = state
        self._since: dict[str, float] = {}  # trainers that run the script from its first line: since when
        self._warned: set[int | None] = set()  # ranks

    def check(self, now: float) -> None:
        seated = self._state.trainers.seated()
        unprotected = [t for t in seated if t.under_real_groups and t.begun and not t.has_state]
        self._since = {trainer.name: self._since.get(trainer.name, now) for trainer in unprotected}
        for trainer in unprotected:
            seconds = now - self._since[trainer.name]
            if seconds >= WARN_AFTER_S and trainer.rank not in self._warned:
                self._warned.add(trainer.rank)
                self._state.emit("not_protected_yet", rank=trainer.rank, seconds=round(seconds))
