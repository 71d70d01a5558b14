"""What one coordinator process of a job asks the others: whether they are there, and to end when the job is over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from deadpool.errors import WireError
from deadpool.protocol.messages import Answer, Ask
from deadpool.protocol.topology import Address
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
