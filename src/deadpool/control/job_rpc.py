"""How another process asks a running job: its run folder names the coordinator and holds the secret."""

from __future__ import annotations

import asyncio
from typing import Any

from deadpool.control.run_dir import RunDir
from deadpool.errors import ConfigError
from deadpool.protocol.messages import Answer, Ask
from deadpool.wire.control_link import connect

_PATIENCE_S = 3.0


def ask(run_dir: RunDir, what: str, **arguments: Any) -> dict[str, Any]:
    """Raises ConfigError with the coordinator's reason if it refuses, or if none answers."""
    return _body(asyncio.run(_ask(run_dir, Ask(what=what, arguments=arguments))))


async def ask_status(run_dir: RunDir) -> dict[str, Any]:
    """For a process that asks again and again. Raises as `ask` does."""
    return _body(await _ask(run_dir, Ask(what="status", arguments={})))


def _body(answer: Answer) -> dict[str, Any]:
    if answer.error:
        raise ConfigError(answer.error)
    return answer.body


async def _ask(run_dir: RunDir, question: Ask) -> Answer:
    address = run_dir.coordinator()
    try:
        link = await connect(address, run_dir.credentials(), patience_s=_PATIENCE_S)
    except TimeoutError:
        reason = f"the job of {run_dir.path} has ended, or its machine cannot be reached"
        raise ConfigError(f"no coordinator answers at {address}: {reason}") from None
    link.send(question)
    async for message in link.messages():
        if isinstance(message, Answer):
            link.abort()
            return message
    raise ConfigError(f"the coordinator at {address} closed the connection without an answer: ask again")
