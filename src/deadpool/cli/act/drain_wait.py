"""How a command waits for a node to leave: it asks the coordinator, so that it also works from another machine."""

from __future__ import annotations

import time

from deadpool.cli.job_client import ask
from deadpool.control.launch.run_dir import RunDir
from deadpool.errors import ConfigError

_ASK_S = 0.2


def await_departure(folder: RunDir, node: str, wait_s: float) -> None:
    """Raises ConfigError if the node is still in the job and no longer being drained, or still being drained after
    `wait_s`."""
    deadline = time.monotonic() + wait_s
    while True:
        status = ask(folder, "status")
        if node not in [each["node"] for each in status["nodes"]]:
            return
        if status["drain"] is None or status["drain"]["node"] != node:
            raise ConfigError(
                f"node {node} was not drained and stays in the job: {folder.events} says why (event drain_failed); "
                "drain it again when the job runs"
            )
        if time.monotonic() > deadline:
            raise ConfigError(
                f"node {node} has not left within {wait_s:g} s, and is still being drained: `deadpool status "
                f"{folder.path}` says how far that is, and --wait-s waits longer"
            )
        time.sleep(_ASK_S)
