"""How another process asks a running job: its run folder names the coordinator and holds the secret."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from deadpool.control.launch.run_dir import RunDir
from deadpool.errors import ConfigError
from deadpool.protocol.messages import Answer, Ask
from deadpool.wire.control_link import connect

_PATIENCE_S = 3.0


def ask(run_dir: RunDir, what: str, **arguments: Any) -> dict[str, Any]:
    """Raises ConfigError with the coordinator's reason if it refuses, or if none answers."""
    return _body(asyncio.run(_ask(run_dir, Ask(what=what, arguments=arguments))))


async def ask_status(run_dir: RunDir) -> dict[str, Any]:
    """Asks for the status without blocking, for a process that asks again and again. It raises as `ask` does."""
    return _body(await _ask(run_dir, Ask(what="status", arguments={})))


def ask_pool(folder: RunDir, what: str, **arguments: Any) -> dict[str, Any]:
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
        link = await connect(address, run_dir.credentials(), patience_s=_PATIENCE_S)
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
