"""Machines on this machine: each is a network, process, mount and host name namespace with a real sshd.

All of them live in one outer set of namespaces (the site), with a bridge between them and an ordinary user who exists
only there. Nothing has a name outside, and the kernel ends every process of the site with its first one, which ends
with the process that made it: nothing can be left behind, and several sites do not know of each other.

/srv is shared by all machines of a site; /home and /tmp are each machine's own. From outside: `Site.path`.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from waiting import LIMIT_S, wait_until

from deadpool.host.child_processes import end_with_parent

ROOT = Path(__file__).resolve().parents[2]
USER, USER_ID = "alice", 4711
PORT = 2222
_BRIDGE_ADDRESS = "10.87.0.1"
_TOOLS = ("sshd", "ssh", "ssh-keygen", "ip", "nsenter", "unshare", "setpriv")
_SBIN = "/usr/sbin:/sbin"


def missing() -> str:
    """Why no site can be made here; empty if one can."""
    if os.getuid() != 0:
        return "needs root, for network namespaces"
    path = f"{os.environ.get('PATH', '')}:{_SBIN}"
    absent = [tool for tool in _TOOLS if shutil.which(tool, path=path) is None]
    if absent:
        return f"needs {', '.join(absent)} (Debian: openssh-server, openssh-client, iproute2, util-linux)"
    try:
        subprocess.run(
            ["unshare", "--net", "--pid", "--fork", "--mount", "true"], check=True, capture_output=True, timeout=LIMIT_S
        )
    except (OSError, subprocess.SubprocessError):
        return "this system does not allow new namespaces"
    return ""


@dataclass(slots=True)
class Machine:
    name: str
    address: str
    process: subprocess.Popen[bytes]
    first: psutil.Process  # its process 1, as seen from outside

    def kill(self) -> None:
        """As a power failure: all processes and the network at once, and no packet says so."""
        self.first.send_signal(signal.SIGKILL)
        self.process.wait(LIMIT_S)

    def path(self, path: str) -> Path:
        """A path of this machine, as seen from outside."""
        return Path(f"/proc/{self.first.pid}/root{path}")

    def agents(self) -> list[psutil.Process]:
        return self.commands("agent")

    def commands(self, name: str) -> list[psutil.Process]:
        found = []
        for process in self.first.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if name in process.cmdline()[3:4]:
                    found.append(process)
        return found

    def processes(self) -> list[str]:
        """What runs on it besides its sshd."""
        found = []
        for process in self.first.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                words = process.cmdline()
                if words and not words[0].startswith(("sshd", "/usr/sbin/sshd")):  # one that has ended has no words
                    found.append(shlex.join(words))
        return found


@dataclass(slots=True)
class Site:
    folder: Path  # for what has to exist before the site does
    machines: dict[str, Machine] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None
    _first: int = 0

    def start(self, *names: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "passwd").write_text(
            f"root:x:0:0:root:/root:/bin/bash\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n"
            f"{USER}:x:{USER_ID}:{USER_ID}:Alice:/home/{USER}:/bin/bash\n"
        )
        self._process, first = _in_namespaces([], f"{self._prepare()}\nexec sleep infinity")
        self._first = first.pid
        self._await(lambda: self.path("/srv/ready").exists(), "the site")
        self._run_ip(
            "link add name br0 type bridge",
            f"addr add {_BRIDGE_ADDRESS}/16 dev br0",
            "link set br0 up",
            "link set lo up",
        )
        self._make_keys()
        added = [self._add(name) for name in names]
        for machine in added:
            self._await(lambda machine=machine: self._answers(machine), f"sshd of {machine.name}")

    def add(self, name: str) -> Machine:
        """Also one that was killed before: it comes back with an empty disk."""
        machine = self._add(name)
        self._await(lambda: self._answers(machine), f"sshd of {name}")
        return machine

    def _add(self, name: str) -> Machine:
        number = 10 + len({*self.machines, name})
        if name in self.machines:
            number = int(self.machines[name].address.rpartition(".")[2])
            self._await(lambda: not self._has_port(number), f"the end of the network of {name}")
        address = f"10.87.1.{number}"
        script = "\n".join(
            [
                f"hostname {name}",
                *(f"mount -t tmpfs tmpfs {folder}" for folder in ("/home", "/tmp", "/run")),
                f"install -d -o {USER} /home/{USER}; chmod 1777 /tmp",
                "ip link set lo up",
                "until ip link show eth0 > /dev/null 2>&1; do sleep 0.02; done",
                f"ip addr add {address}/16 dev eth0; ip link set eth0 up",
                f"exec {_as_user_words()} /usr/sbin/sshd -D -E /srv/ssh/{name}.log -f /srv/ssh/sshd_config",
            ]
        )
        process, first = _in_namespaces(self._enter(), script)
        # One that comes back has the card it had: others remember its hardware address for a while.
        peer = f"peer name eth0 address 02:00:0a:57:01:{number:02x} netns {first.pid}"
        self._run_ip(f"link add name v{number} type veth {peer}", f"link set v{number} master br0 up")
        machine = self.machines[name] = Machine(name, address, process, first)
        return machine

    def cut(self, name: str) -> None:
        self._run_ip(f"link set {self._port(name)} down")

    def mend(self, name: str) -> None:
        self._run_ip(f"link set {self._port(name)} up")

    def cut_launcher(self) -> None:
        """The place that is none of the machines; they still reach each other."""
        self._run_ip(f"addr del {_BRIDGE_ADDRESS}/16 dev br0")

    def mend_launcher(self) -> None:
        self._run_ip(f"addr add {_BRIDGE_ADDRESS}/16 dev br0")

    def path(self, path: str) -> Path:
        """A path of the site, as seen from outside."""
        return Path(f"/proc/{self._first}/root{path}")

    def popen(self, words: Sequence[str], *, cwd: str = f"/home/{USER}", **more: object) -> subprocess.Popen[str]:
        """As the user, at a place that is none of the machines."""
        command = [
            *self._enter(),
            *shlex.split(_as_user_words()),
            "sh",
            "-c",
            f"cd {shlex.quote(cwd)} && exec {shlex.join(words)}",
        ]
        return subprocess.Popen(
            command, text=True, stdin=subprocess.DEVNULL, env=environment(), preexec_fn=end_with_parent(), **more
        )  # type: ignore[call-overload,no-any-return]

    def run(
        self, words: Sequence[str], *, timeout_s: float = LIMIT_S, cwd: str = f"/home/{USER}"
    ) -> subprocess.CompletedProcess[str]:
        process = self.popen(words, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            printed, _ = process.communicate(timeout=timeout_s)
        finally:
            end(process)
        return subprocess.CompletedProcess(list(words), process.returncode, printed)

    def close(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._first, signal.SIGKILL)
            self._process.wait(LIMIT_S)
        for machine in self.machines.values():
            machine.process.wait(LIMIT_S)

    # --- making it ---------------------------------------------------------------------------------------------------

    def _prepare(self) -> str:
        lines = [f"mount --bind {self.folder}/passwd /etc/passwd", *_opened_folders()]
        lines += [f"install -d -o {USER} /home/{USER} /srv/shared /srv/ssh", f"chown {USER} /srv", "touch /srv/ready"]
        return "\n".join(lines)

    def _make_keys(self) -> None:
        for name in ("host_key", "user_key"):
            done = self.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"/srv/ssh/{name}"])
            assert done.returncode == 0, done.stdout
        ssh = self.path("/srv/ssh")
        (ssh / "sshd_config").write_text(
            f"Port {PORT}\nHostKey /srv/ssh/host_key\nAuthorizedKeysFile /srv/ssh/user_key.pub\n"
            "UsePAM no\nPidFile none\nPasswordAuthentication no\nSubsystem sftp internal-sftp\n"
        )
        (ssh / "known_hosts").write_text(f"* {(ssh / 'host_key.pub').read_text()}")
        (ssh / "config").write_text("Include /srv/ssh/config.d/*\n")
        (ssh / "config.d").mkdir()

    def write_ssh_config(self, path: str, names: Sequence[str]) -> None:
        """As a user has it: names of machines, and how to reach them."""
        blocks = [
            f"Host {name}\n  HostName {self.machines[name].address}\n  Port {PORT}\n  User {USER}\n"
            "  IdentityFile /srv/ssh/user_key\n  UserKnownHostsFile /srv/ssh/known_hosts\n"
            for name in names
        ]
        self.path(path).write_text("".join(blocks))

    def _enter(self) -> list[str]:
        return ["nsenter", "-t", str(self._first), "--net", "--mount", "--pid", "--"]

    def _run_ip(self, *commands: str) -> None:
        subprocess.run(
            ["nsenter", "-t", str(self._first), "--net", "ip", "-batch", "-"],
            input="\n".join(commands) + "\n",
            text=True,
            check=True,
            timeout=LIMIT_S,
        )

    def _has_port(self, number: int) -> bool:
        """The kernel takes it away some time after the machine's last process."""
        listed = ["nsenter", "-t", str(self._first), "--net", "ip", "-br", "link"]
        return (
            f"v{number}@" in subprocess.run(listed, text=True, capture_output=True, check=True, timeout=LIMIT_S).stdout
        )

    def _port(self, name: str) -> str:
        return f"v{self.machines[name].address.rpartition('.')[2]}"

    def _answers(self, machine: Machine) -> bool:
        """Within seconds: a connection tried before the machine is up is tried again by the kernel only much later."""
        probe = f"exec 3<>/dev/tcp/{machine.address}/{PORT} && read -t 5 line <&3"
        return self.run(["timeout", "5", "bash", "-c", probe], timeout_s=LIMIT_S).returncode == 0

    def _await(self, ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not ready():
            assert time.monotonic() < deadline, f"{what} did not come up"
            time.sleep(0.02)


def end(process: subprocess.Popen[str]) -> None:
    """Of `Site.popen`: what it entered the site with is still its parent, and has to see its end. Otherwise the kernel
    could not end the site. It may be starting a program in the moment in which one looks."""

    def has_ended() -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        return process.poll() is not None

    wait_until(has_ended, "the end of the command")


def environment() -> dict[str, str]:
    """Of a user's shell. Threads are given, since a sum depends on how many there are."""
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin:{_SBIN}",
        "HOME": f"/home/{USER}",
        "PYTHONPATH": f"{ROOT}/src:{ROOT}/lab",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "LANG": "C.UTF-8",
        "COLUMNS": "160",
    }


def _as_user_words() -> str:
    return f"setpriv --reuid {USER_ID} --regid {USER_ID} --clear-groups --"


def _in_namespaces(prefix: list[str], script: str) -> tuple[subprocess.Popen[bytes], psutil.Process]:
    """Returns the process that we started, and the first process of the new namespaces."""
    command = [
        "unshare",
        "--net",
        "--pid",
        "--fork",
        "--kill-child=SIGKILL",
        "--mount",
        "--mount-proc",
        "--uts",
        "sh",
        "-ec",
        script,
    ]
    process = subprocess.Popen(
        [*prefix, *command],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # unshare complains when its child is killed, which is how a machine dies here
        env=environment(),
        preexec_fn=end_with_parent(),
        start_new_session=True,
    )
    depth = 1 + bool(prefix)  # nsenter forks, to be in the process namespace
    deadline = time.monotonic() + LIMIT_S
    while True:
        below = [psutil.Process(process.pid)]
        with contextlib.suppress(psutil.NoSuchProcess):
            for _ in range(depth):
                below = below[0].children() if below else []
            if below and below[0].cmdline()[:1] not in ([], ["unshare"], ["nsenter"]):
                return process, below[0]
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise AssertionError("namespaces could not be made")
        time.sleep(0.01)


_OF_THE_SITE = (Path("/srv"), Path("/home"))


def _opened_folders() -> list[str]:
    """The python of this test may lie where only root looks, as in /root, or below a folder that the site has for
    itself, as a checkout in /home. The site's user needs it."""
    needed = {Path(path).resolve() for path in (sys.base_prefix, sys.prefix, ROOT)}
    lines: list[str] = []
    opened: dict[Path, list[Path]] = {folder: [] for folder in _OF_THE_SITE}
    for path in sorted(needed):
        closed = next(
            (each for each in reversed(path.parents) if each in _OF_THE_SITE or not each.stat().st_mode & 0o001), None
        )
        if closed is not None:
            opened.setdefault(closed, []).append(path)
    for closed, paths in opened.items():
        kept = [f"/mnt/{number}" for number in range(len(paths))]
        lines += ["mount -t tmpfs tmpfs /mnt"]
        lines += [f"mkdir {k}; mount --bind {shlex.quote(str(p))} {k}" for k, p in zip(kept, paths, strict=True)]
        lines += [f"mount -t tmpfs -o mode=755 tmpfs {closed}"]
        lines += [
            f"mkdir -p {shlex.quote(str(p))}; mount --move {k} {shlex.quote(str(p))}"
            for k, p in zip(kept, paths, strict=True)
        ]
        lines += ["umount /mnt"]
    return lines
