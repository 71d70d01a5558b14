"""The network of the nodes of a job under faults, and how it is cut.

`Namespaces`: this process moves into a network namespace of its own, which has a bridge and the coordinators in it;
every node gets another one, joined to the bridge. None of them has a name outside, so none can be left behind: the
kernel removes it with the last process in it. `Loopback` is for users without that privilege: nodes share 127.0.0.1,
and none can be cut off.

Packets are dropped silently, as in a broken network: no reset, and no error from the route.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from deadpool.errors import ConfigError
from deadpool.host.child_processes import join_network, leave_network

HUB = "hub"
"""Where the coordinators are."""

Way = tuple[str, str]  # sender, receiver

_BRIDGE = "deadpool0"
_HUB_HOST = "10.86.0.1"
_HUB_HARDWARE = "02:de:ad:00:00:01"
"""A fixed address: else it would change as ports come and go, and peers would use the old one."""
_NO_HARDWARE = "02:de:ad:00:00:00"  # a hardware address that no port has
_COMMAND_S = 10.0


class Network(Protocol):
    can_cut: bool
    hub_host: str

    def host(self, node: str) -> str: ...

    def enter(self, node: str) -> None: ...

    def add(self, node: str) -> None:
        """Called before the node is started."""

    def isolate(self, node: str) -> None:
        """Cuts it off from all others in both directions, also from nodes that are added later."""

    def rejoin(self, node: str) -> None: ...

    def cut(self, ways: Iterable[Way]) -> None:
        """No packet arrives on these ways any more; the opposite direction still works."""

    def mend(self, ways: Iterable[Way]) -> None: ...

    def close(self) -> None: ...


class Loopback:
    can_cut = False
    hub_host = "127.0.0.1"

    def host(self, node: str) -> str:
        return self.hub_host

    def enter(self, node: str) -> None:
        pass

    def add(self, node: str) -> None:
        pass

    def isolate(self, node: str) -> None:
        raise ConfigError("nodes that share a network cannot be cut off: run as root")

    def rejoin(self, node: str) -> None:
        pass

    def cut(self, ways: Iterable[Way]) -> None:
        raise ConfigError("nodes that share a network cannot be cut off: run as root")

    def mend(self, ways: Iterable[Way]) -> None:
        pass

    def close(self) -> None:
        pass


class Namespaces:
    can_cut = True
    hub_host = _HUB_HOST

    def __init__(self) -> None:
        self._spaces: dict[str, Path] = {}  # by node; a descriptor of ours keeps each alive
        self._descriptors: list[int] = []
        self._numbers: dict[str, int] = {}
        self._cuts: Counter[Way | str] = Counter()  # ways, and isolated nodes: several faults may want the same

    def start(self) -> None:
        """Raises OSError or CalledProcessError where this user may not. Call it before this process has other
        threads."""
        leave_network()
        _ip("link set lo up", f"link add name {_BRIDGE} address {_HUB_HARDWARE} type bridge")
        _ip(f"addr add {_HUB_HOST}/16 dev {_BRIDGE}", f"link set {_BRIDGE} up")

    def host(self, node: str) -> str:
        if node == HUB:
            return _HUB_HOST
        number = self._numbers[node]
        return f"10.86.{1 + number // 250}.{1 + number % 250}"

    def add(self, node: str) -> None:
        """A node whose name another job used before gets a namespace of its own."""
        descriptor = _new_namespace()
        self._numbers[node] = len(self._descriptors)
        self._descriptors.append(descriptor)
        space = self._spaces[node] = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
        port = self._port(node)
        _ip(f"link add name {port} type veth peer name eth0 netns {space}", f"link set {port} master {_BRIDGE} up")
        _ip("link set lo up", f"addr add {self.host(node)}/16 dev eth0", "link set eth0 up", space=space)

    def enter(self, node: str) -> None:
        join_network(self._spaces[node])

    def isolate(self, node: str) -> None:
        if self._is_first(node):
            _ip(f"link set {self._port(node)} down")

    def rejoin(self, node: str) -> None:
        if self._was_last(node):
            _ip(f"link set {self._port(node)} up")

    def cut(self, ways: Iterable[Way]) -> None:
        for sender, receiver in filter(self._is_first, ways):
            self._neighbour(sender, f"replace {self.host(receiver)} lladdr {_NO_HARDWARE} nud permanent")

    def mend(self, ways: Iterable[Way]) -> None:
        for sender, receiver in filter(self._was_last, ways):
            self._neighbour(sender, f"del {self.host(receiver)}")

    def _is_first(self, cut: Way | str) -> bool:
        self._cuts[cut] += 1
        return self._cuts[cut] == 1

    def _was_last(self, cut: Way | str) -> bool:
        self._cuts[cut] -= 1
        return self._cuts[cut] == 0

    def close(self) -> None:
        """Nodes that still run keep their namespaces."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def _neighbour(self, node: str, change: str) -> None:
        device = _BRIDGE if node == HUB else "eth0"
        _ip(f"neigh {change} dev {device}", space=self._spaces.get(node))

    def _port(self, node: str) -> str:
        return f"dp{self._numbers[node]}"


def open_network() -> Network:
    """Namespaces where this user may make them, else loopback."""
    network = Namespaces()
    try:
        network.start()
    except (OSError, subprocess.SubprocessError):
        return Loopback()
    return network


def _new_namespace() -> int:
    """A thread moves into a new namespace, opens it, and ends; the descriptor keeps the namespace."""
    made: list[int | OSError] = []

    def make() -> None:
        try:
            leave_network()
            made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=make, name="deadpool-chaos-namespace")
    thread.start()
    thread.join()
    (result,) = made
    if isinstance(result, OSError):
        raise result
    return result


def _ip(*commands: str, space: Path | None = None) -> None:
    inside = ["nsenter", f"--net={space}"] if space is not None else []
    subprocess.run(
        [*inside, "ip", "-batch", "-"],
        input="\n".join(commands) + "\n",
        text=True,
        capture_output=True,
        check=True,
        timeout=_COMMAND_S,
    )
