"""A file that tells the machine's own scheduler whether a node is ready, e.g. the readiness probe of a pod.

It exists while a coordinator has accepted the node and every trainer there trains or is parked. It stays when the
coordinator dies: that is no reason to take the node for broken.
"""

from __future__ import annotations

from pathlib import Path

from deadpool.protocol.agent.trainers.trainers import TrainerState

READY_STATES = (TrainerState.SEATED, TrainerState.PARKED, TrainerState.COLD)
"""A cold trainer cannot rehearse this script, and is as ready as it will be."""


class ReadyFile:
    def __init__(self, path: Path | None) -> None:
        """None: nobody asks."""
        self._path, self._exists = path, False
        if path is not None:
            path.unlink(missing_ok=True)  # that of a process before this one

    def set(self, ready: bool) -> None:
        if self._path is None or ready == self._exists:
            return
        if ready:
            self._path.touch()
        else:
            self._path.unlink(missing_ok=True)
        self._exists = ready
