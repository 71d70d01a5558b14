"""Asks the coordinators of a job, wherever they are: whether one answers, and what the one that leads says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from deadpool.errors import ConfigError, WireError
from deadpool.protocol.messages import Answer, Ask
from deadpool.protocol.topology import Address
from deadpool.wire.control_link import connect
from deadpool.wire.credentials import Credentials

_PATIENCE_S = 3.0


async def ask_one(address: Address, credentials: Credentials, question: Ask) -> Answer | None:
    """None: no answer. A coordinator that stands by answers with an error."""
    try:
        async with asyncio.timeout(2 * _PATIENCE_S):
            link = await connect(address, credentials, patience_s=_PATIENCE_S)
            try:
                link.send(question)
                async for message in link.messages():
                    if isinstance(message, Answer):
                        return message
            finally:
                link.abort()
    except (TimeoutError, OSError, WireError):
        return None
    return None


async def ask_leader(addresses: Iterable[Address], credentials: Credentials, what: str, **arguments: Any) -> Any:
    """The answer of the coordinator that leads. Raises ConfigError with what the last one said if none does."""
    error = "no coordinator answers"
    for address in addresses:
        answer = await ask_one(address, credentials, Ask(what=what, arguments=arguments))
        if answer is not None and not answer.error:
            return answer.body
        error = (answer.error if answer is not None else None) or error
    raise ConfigError(error)
