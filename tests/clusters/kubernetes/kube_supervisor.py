"""The process that the whole testbed hangs on: it starts everything, does what clients ask, and takes all with it when
it ends, however it ends. Run as kube_supervisor.py FOLDER BINARIES NODES LIFETIME_S.

It moves into a network namespace of its own, so testbeds do not meet each other or anything else on the machine.
Clients reach the cluster from inside of that namespace (see kube_cluster.py), and this process by the socket in FOLDER.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from kube_control_plane import HUB, SERVICE, ControlPlane
from kube_image import write_images
from kube_node import BRIDGE, Node

from deadpool.host.child_processes import be_called, leave_network

SOCKET, READY, FAILED = "control.sock", "ready.json", "failed"
CGROUP = "deadpool-testbed"
_CGROUPS = Path("/sys/fs/cgroup")


class Supervisor:
    def __init__(self, folder: Path, binaries: Path, count: int) -> None:
        self._folder = folder
        self._cgroup = f"/{CGROUP}-{os.getpid()}"
        self._plane = ControlPlane(folder, binaries)
        images = write_images(folder)
        self._nodes = {f"k{i}": Node(f"k{i}", i, folder, binaries, images, self._cgroup) for i in range(1, count + 1)}

    def start(self) -> None:
        leave_network()
        for command in (
            "link set lo up",
            f"link add {BRIDGE} type bridge",
            f"addr add {HUB}/24 dev {BRIDGE}",
            f"addr add {SERVICE}/32 dev {BRIDGE}",
            f"link set {BRIDGE} up",
        ):
            subprocess.run(["ip", *command.split()], check=True, timeout=10)
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        self._make_cgroups()
        self._plane.start()
        for node in self._nodes.values():
            node.start(list(self._nodes.values()))

    def perform(self, words: list[str]) -> str:
        match words:
            case ["start", name]:
                self._nodes[name].start(list(self._nodes.values()))
            case ["kill", name]:
                self._nodes[name].kill()
            case ["revive"]:
                for node in self._nodes.values():
                    if not node.is_alive:
                        node.start(list(self._nodes.values()))
            case ["cut", name]:
                self._nodes[name].cut()
            case ["mend", name]:
                self._nodes[name].mend()
            case ["stop-process", name]:
                self._plane.stop_process(name)
            case ["start-process", name]:
                self._plane.start_process(name)
                self._plane.await_api()
            case ["down"]:
                raise SystemExit(0)
            case _:
                return f"not known: {words}"
        return "ok"

    def serve(self, lifetime_s: float) -> None:
        deadline = time.monotonic() + lifetime_s
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self._folder / SOCKET))
            listener.listen()
            (self._folder / READY).write_text(json.dumps({"pid": os.getpid(), "nodes": list(self._nodes)}))
            while (left := deadline - time.monotonic()) > 0:
                listener.settimeout(left)
                try:
                    client, _ = listener.accept()
                except TimeoutError:
                    return
                with client:
                    client.settimeout(5.0)
                    self._answer(client)

    def _answer(self, client: socket.socket) -> None:
        try:
            answer = self.perform(client.recv(1000).decode().split())
        except SystemExit:
            client.sendall(b"ok")
            raise
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        client.sendall(answer.encode())

    def stop(self) -> None:
        for node in self._nodes.values():
            node.kill()
        self._plane.stop()
        self._remove_cgroups()

    def _make_cgroups(self) -> None:
        for controller in (path for path in _CGROUPS.iterdir() if path.is_dir()):
            (controller / self._cgroup.lstrip("/")).mkdir(exist_ok=True)
        own = _CGROUPS / "cpuset" / self._cgroup.lstrip("/")
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (own / name).exists():
                (own / name).write_text((own.parent / name).read_text())

    def _remove_cgroups(self) -> None:
        """The kernel removes an empty one only when its processes are quite gone."""
        deadline = time.monotonic() + 5.0
        left = True
        while left and time.monotonic() < deadline:
            roots = [path / self._cgroup.lstrip("/") for path in _CGROUPS.iterdir()]
            left = not all(remove_cgroup(root) for root in roots if root.is_dir())
            time.sleep(0.1)


def remove_cgroup(root: Path) -> bool:
    """With all below it. False: processes are still ending in it."""
    for path in [*sorted((each for each in root.rglob("*") if each.is_dir()), reverse=True), root]:
        try:
            path.rmdir()
        except OSError:
            return False
    return True


def main(folder: str, binaries: str, count: str, lifetime_s: str) -> None:
    be_called("kube-testbed")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    supervisor = Supervisor(Path(folder), Path(binaries), int(count))
    try:
        supervisor.start()
        supervisor.serve(float(lifetime_s))
    except Exception as error:
        (Path(folder) / FAILED).write_text(f"{type(error).__name__}: {error}")
        raise
    finally:
        supervisor.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
