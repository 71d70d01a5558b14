"""Nodes that an administrator, or a health check, drains or fails in Slurm: their ranks go to a spare.

Slurm tells a running job nothing of that, so its nodes' states are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deadpool.clusters.slurm import client
from deadpool.control.coordinator.job_rpc import ask
from deadpool.control.launch.run_dir import RunDir
from deadpool.errors import ConfigError

TAKEN_OUT = {"draining", "drained", "drain", "failing", "fail", "maint"}


class AdminDrains:
    def __init__(self, run_dir: RunDir, *, say: Callable[[str, str], None]) -> None:
        self._run_dir, self._say = run_dir, say

    def look(self, status: dict[str, Any]) -> set[str]:
        """Drains one node of those that are to go. Returns all of them."""
        members = [node["node"] for node in status["nodes"]]
        states = client.node_states(members)
        bad = {node for node, state in states.items() if state in TAKEN_OUT}
        if status["drain"] is None:
            for node in status["nodes"]:
                if node["node"] in bad and node["role"] != "leaving" and self._drain(node["node"], status, bad):
                    break
        return bad

    def _drain(self, name: str, status: dict[str, Any], bad: set[str]) -> bool:
        """Drains a node, but never onto a spare that is to go itself."""
        roles = {node["node"]: node["role"] for node in status["nodes"]}
        healthy = [node for node, role in roles.items() if role == "spare" and node not in bad]
        if roles[name] != "spare" and not healthy:
            self._say(f"drain {name}", f"node {name} is drained in Slurm and waits for a spare")
            return False
        try:
            ask(self._run_dir, "drain", node=name)
        except ConfigError as refusal:
            self._say(f"drain {name}", str(refusal))
            return False
        self._say(f"drain {name}", f"node {name} is drained in Slurm: a spare takes its ranks")
        return True
