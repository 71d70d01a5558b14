"""What one coordinator process knows of the others.

`dismiss` and `answers`: what one coordinator process of a job asks the others: whether they are there, and to end
when the job is over.

`StandbyWatch`: whether the other coordinator processes of a job answer: if the last one is gone, the loss of this
one ends the job.

Only the process that leads looks. A standby is told as lost after two looks in a row, since one may come while it is
started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from deadpool.errors import WireError
from deadpool.events.event import Event
from deadpool.protocol.identity import Address
from deadpool.protocol.messages import Answer, Ask
from deadpool.wire.control_link import connect
from deadpool.wire.credentials import Credentials

DISMISS = "dismiss"
_ATTEMPT_S = 1.0


async def dismiss(peers: Iterable[Address], credentials: Credentials, reason: str) -> None:
    """A coordinator that cannot be reached goes on standing by, which does no harm."""
    order = Ask(what=DISMISS, arguments={"reason": reason})
    await asyncio.gather(*(_ask(each, credentials, order) for each in peers))


async def answers(peer: Address, credentials: Credentials) -> bool:
    """Whether a coordinator process is there, whatever it answers."""
    return await _ask(peer, credentials, Ask(what="status", arguments={}))


async def _ask(peer: Address, credentials: Credentials, question: Ask) -> bool:
    try:
        async with asyncio.timeout(2 * _ATTEMPT_S):
            link = await connect(peer, credentials, patience_s=_ATTEMPT_S)
            try:
                link.send(question)
                async for message in link.messages():
                    if isinstance(message, Answer):
                        break
            finally:
                link.abort()
    except (TimeoutError, WireError, OSError):
        return False
    return True


LOOK_S = 5.0
_LOOKS = 2


class StandbyWatch:
    def __init__(
        self,
        others: Sequence[Address],
        credentials: Credentials,
        *,
        is_leader: Callable[[], bool],
        tell: Callable[[Event], None],
    ) -> None:
        self._others, self._credentials, self._is_leader, self._tell = others, credentials, is_leader, tell
        self._silent = dict.fromkeys(others, 0)  # looks in a row without an answer

    @property
    def left(self) -> int | None:
        """Standby coordinators that answer, as far as this process has looked; None: the job has none."""
        return self._answering() if self._others else None

    def facts(self) -> dict[str, int] | None:
        """Describes the coordinators that stand by, for `deadpool status`."""
        return {"left": self._answering(), "of": len(self._others)} if self._others else None

    def _answering(self) -> int:
        return sum(count < _LOOKS for count in self._silent.values())

    async def run(self) -> None:
        while self._others:
            await asyncio.sleep(LOOK_S)
            if not self._is_leader():
                self._silent = dict.fromkeys(self._others, 0)
                continue
            found = await asyncio.gather(*(answers(each, self._credentials) for each in self._others))
            for place, is_there in zip(self._others, found, strict=True):
                self._note(place, is_there)

    def _note(self, place: Address, is_there: bool) -> None:
        was_lost = self._silent[place] >= _LOOKS
        self._silent[place] = 0 if is_there else self._silent[place] + 1
        is_lost = self._silent[place] >= _LOOKS
        left = self._answering()
        if is_lost and not was_lost:
            self._tell(Event(what="standby_lost", detail={"place": str(place), "left": left}))
            if not left:
                self._tell(Event(what="no_standby"))
        elif was_lost and not is_lost:
            self._tell(Event(what="standby_back", detail={"place": str(place), "left": left}))
