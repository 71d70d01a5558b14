"""A real Slurm cluster on one machine: slurmctld, munged and a slurmd per node, each node in namespaces of its own.

Tests use the class, people `scripts/testbed slurm`. Several testbeds can run side by side, because each has process
ids, networks and mounts of its own. The cluster ends with the process that started it, or when its time is over.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from slurm_config import ClusterShape
from slurm_inside import remove_empty_cgroups

from deadpool.host.child_processes import end_with_parent

ROOT = Path(__file__).resolve().parents[2]
INSIDE = Path(__file__).with_name("slurm_inside.py")
_PROGRAMS = ("/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/sbin/munged", "/usr/bin/sbatch")
_START_S = 600.0
_STOP_S = 120.0


def why_not() -> str | None:
    """Why no testbed can be started here; None: it can."""
    if os.geteuid() != 0:
        return "a Slurm testbed needs root, for namespaces"
    missing = [program for program in _PROGRAMS if not Path(program).exists()]
    missing += [program for program in ("unshare", "nsenter", "ip") if shutil.which(program) is None]
    if missing:
        return f"a Slurm testbed needs {', '.join(missing)}: run scripts/testbed slurm install"
    return None


def install() -> None:
    """Debian's packages. What they start by themselves where there is systemd is none of ours, so it may not start."""
    subprocess.run([ROOT / "scripts/packages", "slurm"], check=True, timeout=900)


@dataclass(slots=True)
class SlurmTestbed:
    folder: Path  # what is to be seen from outside: homes of users, logs
    shape: ClusterShape
    life_s: float = 1800.0
    init: int = 0  # process 1 of the cluster, by its id outside
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def home(self) -> Path:
        """Of alice, as seen from outside; inside it is /home/alice on every machine."""
        return self.folder / "alice"

    def start(self, *, detached: bool = False) -> None:
        """`detached`: the cluster outlives this process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "log").mkdir(exist_ok=True)
        shape = json.dumps(dataclasses.asdict(self.shape))
        serve = [sys.executable, str(INSIDE), "serve", str(self.folder), shape, str(self.life_s)]
        spaces = ["--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
        with (self.folder / "log" / "testbed.out").open("ab") as output:
            self._process = subprocess.Popen(
                ["unshare", *spaces, *serve],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=None if detached else end_with_parent(signal.SIGKILL),
            )
        try:
            self._await_up()
        except BaseException:
            self.stop()
            raise

    def _await_up(self) -> None:
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        deadline = time.monotonic() + _START_S
        while not (self.folder / "ready").exists() or not self._is_idle():
            if self._process.poll() is not None or time.monotonic() > deadline:
                printed = (self.folder / "log" / "testbed.out").read_text(errors="replace")
                raise RuntimeError(f"the Slurm testbed did not start; {self.folder}/log says why: {printed[-2000:]}")
            if not self.init and (found := children.read_text().split()):
                self.init = int(found[0])
            time.sleep(0.1)

    def _is_idle(self) -> bool:
        states = self.run("sinfo -h -N -o %T", check=False).split()
        return len(states) >= self.shape.nodes and set(states) == {"idle"}

    def stop(self) -> None:
        """Ends all of it: the kernel ends what runs in a namespace together with its first process."""
        if self.init:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.init, signal.SIGKILL)
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
        self._remove_cgroups()

    def _remove_cgroups(self) -> None:
        deadline = time.monotonic() + _STOP_S
        while Path(f"/proc/{self.init}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        remove_empty_cgroups()

    # --- what happens to nodes ----------------------------------------------------------------------------------------

    def kill(self, node: str) -> None:
        self._inside("kill", node)

    def start_node(self, node: str) -> None:
        self._inside("start", node)

    def cut(self, node: str) -> None:
        """No packet passes any more; its processes run on."""
        self._inside("cut", node)

    def mend(self, node: str) -> None:
        self._inside("mend", node)

    def on_node(self, node: str, command: str) -> None:
        """As root, with what the node has mounted."""
        self._inside("on", node, command)

    def _inside(self, *words: str) -> None:
        subprocess.run([*self._enter(), sys.executable, str(INSIDE), *words], check=True, timeout=300)

    # --- commands on the login node -----------------------------------------------------------------------------------

    def run(
        self, command: str, *, user: str = "root", folder: str = "/", check: bool = True, timeout_s: float = 300.0
    ) -> str:
        """What it prints. It runs as a login shell of that user would."""
        done = subprocess.run(
            self.command(command, user=user, folder=folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def command(self, command: str, *, user: str, folder: str) -> list[str]:
        home = "/root" if user == "root" else f"/home/{user}"
        path = f"{ROOT}/.venv/bin:{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
        variables = [f"PATH={path}", f"HOME={home}", f"USER={user}", f"PYTHONPATH={ROOT}/src", "OMP_NUM_THREADS=1"]
        shell = ["env", "-i", *variables, "bash", "-c", f"cd {shlex.quote(folder)} && {command}"]
        return [*self._enter(), *(shell if user == "root" else ["runuser", "-u", user, "--", *shell])]

    def _enter(self) -> list[str]:
        return ["nsenter", "-t", str(self.init), "--net", "--pid", "--mount", "--uts", "--ipc"]


# --- scripts/testbed slurm --------------------------------------------------------------------------------------------

FOLDER = ROOT / "out" / "testbed" / "slurm"
LIFE_S = 4 * 3600.0
USAGE = "scripts/testbed slurm install | up [NODES] | run COMMAND | kill|cut|mend|start NODE | down"


def main(words: list[str]) -> None:
    match words:
        case ["install"]:
            install()
        case ["up", *count] if len(count) < 2 and "".join(count).isdigit() | (not count):
            up(int(count[0]) if count else 6)
        case ["run", *command] if command:
            sys.exit(subprocess.call(running().command(shlex.join(command), user="alice", folder="/home/alice")))
        case ["kill", node]:
            running().kill(node)
        case ["cut", node]:
            running().cut(node)
        case ["mend", node]:
            running().mend(node)
        case ["start", node]:
            running().start_node(node)
        case ["down"]:
            down()
        case _:
            sys.exit(USAGE)


def up(nodes: int) -> None:
    if os.geteuid() == 0 and why_not() is not None:
        install()
    if (reason := why_not()) is not None:
        sys.exit(reason)
    down()
    testbed = SlurmTestbed(FOLDER, ClusterShape(nodes=nodes), life_s=LIFE_S)
    testbed.start(detached=True)
    (FOLDER / "testbed.json").write_text(json.dumps({"init": testbed.init, "nodes": nodes}))
    print(testbed.run("sinfo"), end="")
    print(f"logs and homes: {FOLDER}; it ends by itself after {LIFE_S / 3600:g} hours")


def running() -> SlurmTestbed:
    if (found := _find()) is None:
        sys.exit("no Slurm testbed is up: scripts/testbed slurm up")
    return found


def down() -> None:
    if (found := _find()) is not None:
        found.stop()
        print("the Slurm testbed is down")
    shutil.rmtree(FOLDER, ignore_errors=True)


def _find() -> SlurmTestbed | None:
    """The one that was started last, if it is still that process."""
    try:
        state = json.loads((FOLDER / "testbed.json").read_text())
        command = Path(f"/proc/{state['init']}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    if INSIDE.name.encode() not in command:
        return None
    return SlurmTestbed(FOLDER, ClusterShape(nodes=state["nodes"]), init=state["init"])


if __name__ == "__main__":
    main(sys.argv[1:])
