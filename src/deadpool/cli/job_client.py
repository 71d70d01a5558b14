"""How commands reach a running job: its run folder names the coordinator and holds the secret."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from deadpool.control.run_dir import RunDir
from deadpool.errors import ConfigError
from deadpool.protocol.messages import Answer, Ask
from deadpool.wire.control_link import connect

RUNS = Path("deadpool-runs")
_PATIENCE_S = 3.0


def find_run_dir(given: Path | None) -> RunDir:
    """The folder that was given, or the newest one in ./deadpool-runs."""
    if given is not None:
        return RunDir(given)
    runs = sorted(path for path in RUNS.glob("*") if (path / "job.json").exists())
    if not runs:
        raise ConfigError(f"no job was found in ./{RUNS}: give the run folder of the job with --run-dir")
    return RunDir(runs[-1])


def ask(run_dir: RunDir, what: str, **arguments: Any) -> dict[str, Any]:
    answer = asyncio.run(_ask(run_dir, Ask(what=what, arguments=arguments)))
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
