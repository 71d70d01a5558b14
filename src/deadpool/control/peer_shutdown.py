"""How the other coordinator processes of a job learn that the job is over."""

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
    await asyncio.gather(*(_dismiss(address, credentials, reason) for address in peers))


async def _dismiss(address: Address, credentials: Credentials, reason: str) -> None:
    try:
        async with asyncio.timeout(2 * _ATTEMPT_S):
            link = await connect(address, credentials, patience_s=_ATTEMPT_S)
            link.send(Ask(what=DISMISS, arguments={"reason": reason}))
            async for message in link.messages():
                if isinstance(message, Answer):
                    break
            link.abort()
    except (TimeoutError, WireError, OSError):
        return
