"""The Slurm testbed from the inside: this runs as root in namespaces of its own, which are the whole cluster.

The process with id 1 in there starts munged, slurmctld and one slurmd per node, and reaps what is left without a
parent. Each node has further namespaces of its own (processes, network, mounts, host name) and a cable to a bridge.
When the first process ends, for whatever reason, the kernel ends and removes all of it: no process, interface or mount
stays. Nothing of the machine outside is changed.

    python slurm_inside.py serve FOLDER SHAPE     # process 1
    python slurm_inside.py start|kill|cut|mend NODE
    python slurm_inside.py on NODE COMMAND
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pwd
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import slurm_config
from slurm_config import ClusterShape

RUN = Path("/run/slurm")
_BRIDGE = "cluster0"
_FREEZER = Path("/sys/fs/cgroup/freezer")
_CLONE_NEWCGROUP = 0x02000000
_START_S = 300.0


def main() -> None:
    command, *arguments = sys.argv[1:]
    match command:
        case "serve":
            serve(Path(arguments[0]), ClusterShape(**json.loads(arguments[1])), float(arguments[2]))
        case "start":
            start_node(arguments[0])
        case "kill":  # the first process of its namespace: the kernel ends all others in it
            os.kill(int(_init(arguments[0])), signal.SIGKILL)
        case "on":
            _run("nsenter", "-t", _init(arguments[0]), "--mount", "--uts", "--net", "sh", "-c", arguments[1])
        case "cut":
            _run("ip", "link", "set", f"to-{arguments[0]}", "down")
        case "mend":
            _run("ip", "link", "set", f"to-{arguments[0]}", "up")


def serve(folder: Path, shape: ClusterShape, life_s: float) -> None:
    """Runs until it is ended, but at most `life_s`."""
    _enter_cgroup()
    _mount(folder, shape)
    _start_network()
    (RUN / "addresses.json").write_text(json.dumps({name: shape.address(name) for name in shape.names}))
    if shape.submit_only_from_login:
        refusal = "#!/bin/sh\necho 'sbatch: error: jobs are submitted on the login node only' >&2\nexit 1\n"
        slurm_config.REFUSING_SBATCH.write_text(refusal)
        slurm_config.REFUSING_SBATCH.chmod(0o755)
    for path in slurm_config.gpu_files(shape):
        Path(path).touch()
    _start_munge()
    _daemon(["/usr/sbin/slurmctld", "-D", "-c"], RUN / "log" / "slurmctld.out")
    for name in shape.names:
        start_node(name)
    (folder / "ready").touch()
    deadline = time.monotonic() + life_s
    while time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.1)


def _enter_cgroup() -> None:
    """Slurm's cgroups lie below one of our own."""
    if not slurm_config.has_freezer():
        return
    remove_empty_cgroups()
    own = _FREEZER / f"deadpool-testbed-{os.urandom(4).hex()}"
    own.mkdir()
    (own / "cgroup.procs").write_text("0")
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWCGROUP) != 0:
        raise OSError(ctypes.get_errno(), "no cgroup namespace")


def remove_empty_cgroups() -> None:
    """Those of testbeds that have ended. The system does not remove one that has a process in it."""
    for own in _FREEZER.glob("deadpool-testbed-*"):
        for folder in (*sorted(own.rglob("*/"), reverse=True), own):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _mount(folder: Path, shape: ClusterShape) -> None:
    """Own versions of what daemons and users of a cluster see; the folder holds what is to be seen from outside."""
    _run("mount", "--make-rprivate", "/")
    _open_ways([Path(sys.base_prefix), Path(__file__).parents[2], *map(Path, sys.path)])
    for where in ("/run", "/home", "/dev/shm"):
        _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", where)
    _run("chmod", "1777", "/dev/shm")
    for name in ("log", "state"):
        (RUN / name).mkdir(parents=True)
    _bind(folder / "log", RUN / "log")
    for name, uid in slurm_config.USERS.items():
        _bind(folder / name, Path("/home") / name)
        os.chown(folder / name, uid, uid)
    if slurm_config.has_freezer():
        (slurm_config.CGROUPS / "freezer").mkdir(parents=True)
        _run("mount", "-t", "cgroup", "-o", "freezer", "freezer", str(slurm_config.CGROUPS / "freezer"))
    own = Path("/run/etc")
    (own / "slurm").mkdir(parents=True)
    for name, text in slurm_config.files(shape).items():
        (own / "slurm" / name).write_text(text)
    _run("mount", "--bind", str(own / "slurm"), "/etc/slurm")
    users = [f"{name}:x:{uid}:{uid}::/home/{name}:/bin/bash\n" for name, uid in slurm_config.USERS.items()]
    groups = [f"{name}:x:{uid}:\n" for name, uid in slurm_config.USERS.items()]
    contents = {
        "passwd": Path("/etc/passwd").read_text() + "".join(users),
        "group": Path("/etc/group").read_text() + "".join(groups),
        "hosts": slurm_config.hosts(shape),
    }
    for name, text in contents.items():
        (own / name).write_text(text)
        _run("mount", "--bind", str(own / name), f"/etc/{name}")


def _open_ways(needed: Iterable[Path]) -> None:
    """Python and the project may lie in a home folder that only its owner can enter. In here such a folder is covered
    with an empty one, in which only what is needed appears again."""
    wanted = {path.resolve() for path in needed if path.is_dir()}
    closed = {next(iter(_closed_above(path)), None) for path in wanted} - {None}
    for number, folder in enumerate(sorted(closed)):
        inside = [path for path in wanted if path.is_relative_to(folder)]
        tops = [path for path in inside if not any(path != other and path.is_relative_to(other) for other in inside)]
        holders = []
        for index, path in enumerate(tops):
            holder = Path(f"/mnt/deadpool-{number}-{index}")
            _run("mount", "-t", "tmpfs", "tmpfs", "/mnt") if not holders and not number else None
            holder.mkdir()
            _run("mount", "--rbind", str(path), str(holder))
            holders.append(holder)
        _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(folder))
        for path, holder in zip(tops, holders, strict=True):
            _bind(holder, path)


def _closed_above(path: Path) -> Iterable[Path]:
    return [each for each in reversed([path, *path.parents]) if not each.stat().st_mode & 0o001]


def _bind(source: Path, target: Path) -> None:
    source.mkdir(parents=True, exist_ok=True)
    target.mkdir(parents=True, exist_ok=True)
    _run("mount", "--rbind", str(source), str(target))


def _start_network() -> None:
    _run("hostname", slurm_config.CONTROLLER)
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "link", "add", _BRIDGE, "type", "bridge")
    _run("ip", "addr", "add", f"{slurm_config.NETWORK}.1/24", "dev", _BRIDGE)
    _run("ip", "link", "set", _BRIDGE, "up")


def _start_munge() -> None:
    folder, owner = Path("/run/munge"), pwd.getpwnam("munge")
    folder.mkdir(mode=0o755)
    key = folder / "key"
    key.write_bytes(os.urandom(64))
    key.chmod(0o600)
    for path in (folder, key):
        os.chown(path, owner.pw_uid, owner.pw_gid)
    files = {"key-file": "key", "log-file": "log", "seed-file": "seed"}
    options = [f"--{option}={folder / name}" for option, name in files.items()]
    _daemon(["runuser", "-u", "munge", "--", "/usr/sbin/munged", "--foreground", *options], RUN / "log" / "munged.out")
    _await((folder / "munge.socket.2").exists, "munged")


def start_node(name: str) -> None:
    folder = RUN / name
    folder.mkdir(exist_ok=True)
    address = json.loads((RUN / "addresses.json").read_text())[name]
    # Process 1 of the node takes up orphans. A shared memory of its own goes with the node, as on a real one.
    freezer = slurm_config.CGROUPS / "freezer"
    cgroup = freezer / name
    script = f"""
        [ -d {cgroup} ] && mount -t cgroup -o freezer freezer {freezer}
        [ -e {slurm_config.REFUSING_SBATCH} ] && mount --bind {slurm_config.REFUSING_SBATCH} /usr/bin/sbatch
        mount -t tmpfs -o mode=1777 tmpfs /dev/shm; hostname {name}; ip link set lo up
        until ip link show eth0 >/dev/null 2>&1; do sleep .02; done
        ip addr add {address}/24 dev eth0; ip link set eth0 up
        /usr/sbin/slurmd -D -N {name} & wait"""
    if freezer.exists():
        cgroup.mkdir(exist_ok=True)
    spaces = ["--net", "--pid", "--cgroup", "--fork", "--kill-child", "--mount-proc", "--uts"]
    node = shlex.join(["unshare", *spaces, "bash", "-c", script])
    process = _daemon(
        ["bash", "-c", f"[ -d {cgroup} ] && echo 0 >{cgroup}/cgroup.procs; exec {node}"], RUN / "log" / f"{name}.out"
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    _await(lambda: children.read_text().split() and Path(f"/proc/{process.pid}/comm").read_text() == "unshare\n", name)
    (init,) = children.read_text().split()
    (folder / "init.pid").write_text(init)
    subprocess.run(["ip", "link", "del", f"to-{name}"], stderr=subprocess.DEVNULL, timeout=120)
    _run("ip", "link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", init)
    _run("ip", "link", "set", f"to-{name}", "master", _BRIDGE, "up")


def _init(node: str) -> str:
    return (RUN / node / "init.pid").read_text()


def _daemon(command: list[str], output: Path) -> subprocess.Popen[bytes]:
    with output.open("ab") as file:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)


def _await(ready: object, what: str) -> None:
    deadline = time.monotonic() + _START_S
    while not ready():  # type: ignore[operator]
        if time.monotonic() > deadline:
            sys.exit(f"{what} did not start within {_START_S:g} s: see the logs")
        time.sleep(0.02)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=120)


if __name__ == "__main__":
    main()
