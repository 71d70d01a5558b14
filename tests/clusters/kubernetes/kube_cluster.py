"""A client of the testbed: starts it, finds it again, and runs commands inside of its network."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kube_supervisor import CGROUP, FAILED, READY, SOCKET, remove_cgroup

from deadpool.host.child_processes import end_with_parent

ROOT = Path(__file__).resolve().parents[3]
BINARIES = Path(os.environ.get("DEADPOOL_TESTBED_KUBERNETES", ROOT / ".testbed/kubernetes/bin"))
_PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
_PACKAGES = ("etcd", "containerd", "runc", "ip", "unshare", "nsenter", "openssl")
_UP_S = 180.0
_PREFIX = "kube-testbed-"


def why_not() -> str:
    """Why there can be no testbed here. Empty: there can."""
    if os.geteuid() != 0:
        return "the Kubernetes testbed makes namespaces and needs root"
    if missing := [name for name in _PROGRAMS if not (BINARIES / name).exists()]:
        return f"{missing[0]} is not built: run scripts/testbed kubernetes build"
    if missing := [name for name in _PACKAGES if shutil.which(name) is None]:
        return f"{missing[0]} is not installed: run scripts/testbed kubernetes build"
    if not Path("/bin/busybox").exists() or not Path("/usr/lib/cni/bridge").exists():
        return "busybox-static or containernetworking-plugins is not installed: run scripts/testbed kubernetes build"
    return ""


@dataclass(slots=True)
class Cluster:
    folder: Path
    supervisor: subprocess.Popen[bytes] | None = None  # None: another process has started it

    @classmethod
    def start(cls, count: int, *, lifetime_s: float, detached: bool = False, folder: Path | None = None) -> Cluster:
        """A short path: sockets lie in it. Detached, it lives on when this process ends, for so long at most."""
        sweep()
        folder = folder or Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            str(Path(__file__).with_name("kube_supervisor.py")),
            folder,
            BINARIES,
            count,
            lifetime_s,
        ]
        with open(folder / "supervisor.log", "ab") as log:
            process = subprocess.Popen(
                [str(word) for word in command],
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=None if detached else end_with_parent(),
            )
        cluster = cls(folder, process)
        try:
            cluster._await_up(_UP_S)
        except BaseException:
            cluster.down()
            raise
        return cluster

    def _await_up(self, limit_s: float) -> None:
        self.await_true(self._is_started, "the testbed", limit_s)
        nodes = self._facts()["nodes"]
        self.await_true(lambda: len(self.ready_nodes()) == len(nodes), f"{len(nodes)} ready nodes", limit_s)

    def _is_started(self) -> bool:
        failed = self.folder / FAILED
        if failed.exists() or (self.supervisor is not None and self.supervisor.poll() is not None):
            reason = failed.read_text() if failed.exists() else "it ended"
            raise RuntimeError(f"the testbed did not start: {reason}; see {self.folder / 'supervisor.log'}")
        return (self.folder / READY).exists()

    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads((self.folder / READY).read_text())
        return facts

    def down(self) -> None:
        """Ends everything and removes the folder."""
        try:
            self.ask("down")
        except OSError:
            if self.supervisor is not None:
                self.supervisor.send_signal(signal.SIGTERM)
        if self.supervisor is not None:
            try:
                self.supervisor.wait(30)
            except subprocess.TimeoutExpired:
                self.supervisor.kill()
                self.supervisor.wait()
        else:
            pid = self._facts()["pid"]
            self.await_true(lambda: not Path(f"/proc/{pid}").exists(), "end of the testbed", 30)
        shutil.rmtree(self.folder, ignore_errors=True)

    def remains(self) -> list[str]:
        """What is left of it on this machine: files, processes, groups of processes."""
        processes = [path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if str(self.folder) in _text(path)]
        groups = Path("/sys/fs/cgroup").glob(f"*/{CGROUP}-{self.supervisor.pid}") if self.supervisor else []
        return [str(path) for path in (*processes, *groups, self.folder) if path.exists()]

    # --- what can be done to it ---------------------------------------------------------------------------------------

    def ask(self, *words: str) -> None:
        """kill NODE, start NODE, revive, cut NODE, mend NODE, stop-process api, start-process api."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(120.0)
            client.connect(str(self.folder / SOCKET))
            client.sendall(" ".join(words).encode())
            answer = client.recv(10000).decode()
        if answer != "ok":
            raise RuntimeError(f"{words}: {answer}")

    # --- what can be asked --------------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "KUBECONFIG": str(self.folder / "kubeconfig"),
            "PATH": f"{BINARIES}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}/src:{ROOT}/lab",
        }

    def inside(self, *command: str) -> list[str]:
        """The command, to be run inside of the cluster's network."""
        return ["nsenter", f"--net=/proc/{self._facts()['pid']}/ns/net", *command]

    def run(self, *command: str, text: str | None = None, timeout_s: float = 60.0, check: bool = True) -> str:
        done = subprocess.run(
            self.inside(*command),
            env=self.environment(),
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def kubectl(self, *arguments: str, text: str | None = None, timeout_s: float = 60.0, check: bool = True) -> str:
        return self.run("kubectl", *arguments, text=text, timeout_s=timeout_s, check=check)

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", *arguments, "-o", "json"))["items"]
        return found

    def ready_nodes(self) -> list[str]:
        return [node["metadata"]["name"] for node in self.items("nodes") if _is_ready(node)]

    def await_true(self, ready: Callable[[], bool], what: str, limit_s: float) -> float:
        """Returns how long it took."""
        began = time.monotonic()
        while not ready():
            if time.monotonic() > began + limit_s:
                raise TimeoutError(f"{what} did not come within {limit_s:g} s; see {self.folder}")
            time.sleep(0.2)
        return time.monotonic() - began


def sweep() -> None:
    """Removes what testbeds have left whose supervisor was killed: their processes are gone, files are not."""
    for folder in Path("/tmp").glob(f"{_PREFIX}*"):
        ready = folder / READY
        if ready.exists() and not Path(f"/proc/{json.loads(ready.read_text())['pid']}").exists():
            shutil.rmtree(folder, ignore_errors=True)
    for root in Path("/sys/fs/cgroup").glob(f"*/{CGROUP}-*"):
        if not Path(f"/proc/{root.name.rpartition('-')[2]}").exists():
            remove_cgroup(root)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""  # it has ended


def _is_ready(node: dict[str, Any]) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"].get("conditions", []))
