"""job.json in the run folder: where the coordinator is. Commands read it, and so does the launcher."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from deadpool.control.run_dir import RunDir
from deadpool.events import Event
from deadpool.protocol.topology import Address

_RETRY_S = 1.0
_WHAT = "job.json and the address of the coordinator in it"


class Announcement:
    """A coordinator can lead without it, as long as the disk takes nothing: only commands do not find it."""

    def __init__(
        self,
        folder: RunDir,
        address: Address,
        facts: dict[str, Any],
        *,
        is_leader: Callable[[], bool],
        tell: Callable[[Event], None],
    ) -> None:
        self._folder, self._address, self._facts = folder, address, facts
        self._is_leader, self._tell = is_leader, tell
        self._is_late = False

    def make(self) -> None:
        """Again and again until the disk takes it, or another coordinator leads."""
        if self._is_late and not self._is_leader():
            return
        try:
            self._folder.announce(self._address, **self._facts)
        except OSError as error:
            if not self._is_late:
                self._is_late = True
                detail = {"what_waits": _WHAT, "reason": error.strerror or str(error), "waiting": 1}
                self._tell(Event(what="storage_failed", detail=detail))
            asyncio.get_running_loop().call_later(_RETRY_S, self.make)
        else:
            if self._is_late:
                self._tell(Event(what="storage_back", detail={"what_waits": _WHAT}))
