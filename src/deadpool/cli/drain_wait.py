"""How a command waits for a node to leave: by asking, so that it also works from another machine."""

from __future__ import annotations

import time

from deadpool.cli.job_client import ask
from deadpool.control.run_dir import RunDir
from deadpool.errors import ConfigError

_ASK_S = 0.2


def await_departure(folder: RunDir, node: str) -> None:
    """Refused, if the node is still there and nobody drains it any more."""
    while True:
        status = ask(folder, "status")
        if node not in [each["node"] for each in status["nodes"]]:
            return
        if status["drain"] is None or status["drain"]["node"] != node:
            raise ConfigError(f"node {node} stays: the events of {folder.path} say why (drain_failed)")
        time.sleep(_ASK_S)
