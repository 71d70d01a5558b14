"""How a coordinator is found and asked.

`Announcement`: job.json in the run folder: where the coordinator is. Commands read it, and so does the launcher.

How another process asks a running job: its run folder names the coordinator and holds the secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deadpool.control.launch.run_dir import RunDir
from deadpool.errors import ConfigError, DeadPoolError
from deadpool.events.event import Event
from deadpool.events.log import SLOW_S
from deadpool.protocol.identity import Address
from deadpool.protocol.messages import Answer, Ask
from deadpool.wire.control_link import connect

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

    def storage(self) -> dict[str, object] | None:
        """Describes the announcement that waits for the disk, for `deadpool status`. None means that it is written."""
        if not self._is_told:
            return None
        return {"what_waits": _WHAT, "node": None, "reason": self._reason, "waiting": 1, "dropped": 0}

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


_CONNECT_PATIENCE_S = 3.0


def ask(run_dir: RunDir, what: str, **arguments: object) -> dict[str, Any]:
    """Raises ConfigError with the coordinator's reason if it refuses, or if none answers."""
    return _body(asyncio.run(_ask(run_dir, Ask(what=what, arguments=arguments))))


async def ask_status(run_dir: RunDir) -> dict[str, Any]:
    """Asks for the status without blocking, for a process that asks again and again. It raises as `ask` does."""
    return _body(await _ask(run_dir, Ask(what="status", arguments={})))


def ask_pool(folder: RunDir, what: str, **arguments: object) -> dict[str, Any]:
    """Asks the pool whose folder this is, as `ask` does a coordinator."""
    return _body(asyncio.run(_ask(pool_folder(folder.path), Ask(what=what, arguments=arguments), "pool")))


def pool_folder(path: Path) -> RunDir:
    """Raises ConfigError if no pool has ever been served from it, or if it cannot be read now."""
    folder = RunDir(path)
    try:
        folder.coordinator()
    except ConfigError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            what_now = "give --pool, or start one with deadpool pool serve"
            raise ConfigError(f"no pool in {path}: {what_now}") from None
        raise ConfigError(f"the pool in {path} cannot be found ({error.__cause__}): give --pool") from None
    return folder


def _body(answer: Answer) -> dict[str, Any]:
    if answer.error:
        raise ConfigError(answer.error)
    return answer.body


async def _ask(run_dir: RunDir, question: Ask, who: str = "coordinator") -> Answer:
    address = run_dir.coordinator()
    try:
        link = await connect(address, run_dir.credentials(), patience_s=_CONNECT_PATIENCE_S)
    except TimeoutError:
        whose = "the pool" if who == "pool" else "the job"
        reason = f"{whose} of {run_dir.path} has ended, or its machine cannot be reached"
        look = f". `deadpool show story {run_dir.path}` shows what happened to it" if who == "coordinator" else ""
        raise ConfigError(f"no {who} answers at {address}: {reason}{look}") from None
    link.send(question)
    async for message in link.messages():
        if isinstance(message, Answer):
            link.abort()
            return message
    raise ConfigError(f"the {who} at {address} closed the connection without an answer: ask again")
