"""job.json in the run folder: where the coordinator is. Commands read it, and so does the launcher."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from deadpool.control.launch.run_dir import RunDir
from deadpool.errors import DeadPoolError
from deadpool.events.event import Event
from deadpool.events.log import SLOW_S
from deadpool.protocol.topology import Address

_RETRY_S = 1.0
_LOOK_S = 5.0
_PATIENCE_S = 0.2
"""A disk that answers has taken it by then. For one that does not, no coordinator waits longer."""
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
        secret: bytes | None = None,
    ) -> None:
        """`secret`: that of the job, if it is kept in this folder."""
        self._secret = secret
        self._folder, self._address, self._facts = folder, address, facts
        self._is_leader, self._tell = is_leader, tell
        self._is_told, self._reason = False, ""
        self._begun_at = 0.0
        self._thread: threading.Thread | None = None
        self._failure: str | None = None

    def make(self) -> None:
        """Announces this coordinator, again and again until the disk takes it, or another coordinator leads."""
        if not self._is_leader():
            return
        self._begun_at, self._failure = time.monotonic(), None
        self._thread = threading.Thread(target=self._write, name="deadpool-announcement", daemon=True)
        self._thread.start()
        self._thread.join(_PATIENCE_S)
        self._look()

    def _write(self) -> None:
        try:
            self._folder.announce(self._address, still=self._is_leader, **self._facts)
        except Exception as error:  # the outer edge of a thread
            self._failure = (isinstance(error, OSError) and error.strerror) or str(error)

    def _look(self) -> None:
        assert self._thread is not None
        if not self._is_leader():
            return  # whoever leads now announces itself
        if self._thread.is_alive():
            if time.monotonic() - self._begun_at > SLOW_S:
                self._tell_once(f"a write takes longer than {SLOW_S:g} s")
            asyncio.get_running_loop().call_later(_RETRY_S, self._look)
        elif self._failure is not None:
            self._tell_once(self._failure)
            asyncio.get_running_loop().call_later(_RETRY_S, self.make)
        else:
            if self._is_told:
                self._is_told, self._reason = False, ""
                self._tell(Event(what="storage_back", detail={"what_waits": _WHAT, "dropped": 0}))
            asyncio.get_running_loop().call_later(_LOOK_S, self._look_after)

    def storage(self) -> dict[str, Any] | None:
        """Describes the announcement that waits for the disk, for `deadpool status`. None means that it is written."""
        told = {"what_waits": _WHAT, "node": None, "reason": self._reason, "waiting": 1, "dropped": 0}
        return told if self._is_told else None

    # --- afterwards ---------------------------------------------------------------------------------------------------

    def _look_after(self) -> None:
        """Somebody may have removed the folder and made it again: without these files no command reaches the job."""
        if self._is_leader():
            self._thread = threading.Thread(target=self._restore, name="deadpool-announcement", daemon=True)
            self._thread.start()
            asyncio.get_running_loop().call_later(_LOOK_S, self._look_after_that)

    def _look_after_that(self) -> None:
        """A disk that does not answer gets no second thread."""
        assert self._thread is not None
        if self._thread.is_alive():
            asyncio.get_running_loop().call_later(_LOOK_S, self._look_after_that)
        else:
            self._look_after()

    def _restore(self) -> None:
        """Restores what is missing, but only in a folder that is there: one that is gone may come back as it was."""
        with contextlib.suppress(OSError, DeadPoolError):  # it is looked at again
            if self._folder.path.is_dir():
                self._folder.restore(self._secret)
                if not self._folder.is_known:
                    self._folder.announce(self._address, still=self._is_leader, **self._facts)

    def _tell_once(self, reason: str) -> None:
        if not self._is_told:
            self._is_told, self._reason = True, reason
            detail = {"what_waits": _WHAT, "reason": reason, "waiting": 1}
            self._tell(Event(what="storage_failed", detail=detail))
