"""Nodes on one machine, each in a network namespace of its own, joined by a bridge in another one.

None of the namespaces has a name: the kernel removes each of them with its last process, however the test ends.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from examined_machine import COMMAND, PATIENTLY, Examined
from waiting import LIMIT_S

from deadpool.host.child_processes import end_with_parent

PORT = 29871
LINKS = "bandwidth"
"""The links of namespaces are as quick as this machine's processors have time: on a busy one they may be slow, so only
tests of links look at them."""
_LIFE_S = 2 * LIMIT_S
_COMMAND_S = 120.0


class Node:
    def __init__(self, name: str, host: str, pid: int) -> None:
        self.name, self.host, self._pid = name, host, pid

    def inside(self, *command: object) -> list[str]:
        return ["nsenter", f"--net=/proc/{self._pid}/ns/net", *map(str, command)]

    def run(self, command: str) -> None:
        subprocess.run(self.inside("sh", "-ec", command), check=True, timeout=_COMMAND_S, capture_output=True)


class NodeNetwork:
    """`nodes` are n1, n2, ...; n1 asks the others."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    def __getitem__(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def examine_all(
        self,
        *words: object,
        before: Mapping[str, list[str]] | None = None,
        more: Mapping[str, Mapping[str, str]] | None = None,
        wait_s: float = LIMIT_S,
    ) -> dict[str, tuple[int, str, str]]:
        """The doctor on every node at once: exit code, what it printed, what it complained of. `before` and `more` are
        for single nodes."""
        place = f"{self.nodes[0].host}:{PORT}"
        common = ["--json", "--rendezvous", place, "--nodes", len(self.nodes), "--wait-s", wait_s, *PATIENTLY, *words]
        running = {}
        for node in self.nodes:
            command = [*(before or {}).get(node.name, []), *COMMAND, "--name", node.name, *common]
            running[node.name] = subprocess.Popen(
                node.inside(*command),
                env={**os.environ, **(more or {}).get(node.name, {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                preexec_fn=end_with_parent(),
            )
        try:
            told = {name: process.communicate(timeout=_LIFE_S) for name, process in running.items()}
        finally:
            for process in running.values():
                process.kill()
        return {name: (running[name].returncode, *told[name]) for name in running}

    def found(self, *, besides: str = LINKS, **how: object) -> Examined:
        """Returns what all nodes found together. All nodes end with its exit code, and the others say nothing."""
        told = self.examine_all(**how)
        assert {code for code, _, _ in told.values()} == {told["n1"][0]}, told
        assert [name for name, (_, printed, _) in told.items() if printed] == ["n1"], told
        return Examined(*told["n1"], besides=besides)


@contextlib.contextmanager
def node_network(count: int) -> Iterator[NodeNetwork]:
    with contextlib.ExitStack() as life:
        switch = _namespace(life)
        _ip(switch, "link add hub type bridge", "link set hub up", "link set lo up")
        nodes = []
        for number in range(1, count + 1):
            pid, host = _namespace(life), f"10.97.0.{number}"
            _ip(switch, f"link add p{number} type veth peer name eth0 netns {pid}", f"link set p{number} master hub up")
            _ip(pid, "link set lo up", f"addr add {host}/24 dev eth0", "link set eth0 up")
            nodes.append(Node(f"n{number}", host, pid))
        yield NodeNetwork(nodes)


def _namespace(life: contextlib.ExitStack) -> int:
    holder = subprocess.Popen(["unshare", "--net", "sleep", str(_LIFE_S)], preexec_fn=end_with_parent())
    life.callback(holder.wait)
    life.callback(holder.kill)
    own, deadline = Path("/proc/self/ns/net").readlink(), time.monotonic() + _COMMAND_S
    while Path(f"/proc/{holder.pid}/ns/net").readlink() == own:
        if holder.poll() is not None or time.monotonic() > deadline:
            pytest.skip("no network namespace can be made here")
        time.sleep(0.01)
    return holder.pid


def _ip(pid: int, *commands: str) -> None:
    lines = "\n".join(commands) + "\n"
    command = ["nsenter", f"--net=/proc/{pid}/ns/net", "ip", "-batch", "-"]
    subprocess.run(command, input=lines, text=True, check=True, timeout=_COMMAND_S, capture_output=True)
