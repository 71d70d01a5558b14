"""What people do around a job that runs: they close its terminal, and start it a second time."""

from __future__ import annotations

import subprocess
import sys

from deadpool_lab.chaos.faults.fault import Fault, Scene
from deadpool_lab.chaos.jobs import SCRIPT

_REFUSED = 2


class TerminalClosed(Fault):
    """Closes the terminal of all processes of the job that have not lost theirs before. Under `setsid` and `nohup` no
    SIGHUP comes with it; each line that is printed fails from then on."""

    kind = "terminal_closed"

    def aim(self, scene: Scene) -> bool:
        if scene.terminal is None:
            return False
        self.target = f"terminal {scene.terminal.number}"
        return True

    def inject(self, scene: Scene) -> None:
        assert scene.terminal is not None
        scene.terminal.replace()
        scene.processes.print_to(scene.terminal.descriptor)


class SecondLauncher(Fault):
    """`deadpool run` with the run folder of this job: it has to be refused, and to change nothing."""

    kind = "second_launcher"
    launcher: subprocess.Popen[str]
    secret: bytes
    harms_before: int | None  # to the disk; None: it takes nothing, so that the launcher may be refused because of that

    def aim(self, scene: Scene) -> bool:
        self.target = "the run folder"
        return scene.disk is not None

    def inject(self, scene: Scene) -> None:
        assert scene.disk is not None
        self.harms_before = scene.disk.harms if scene.disk.is_sound else None
        self.secret = scene.run_dir.secret_file.read_bytes()
        command = [sys.executable, "-m", "deadpool.cli.main", "run", f"--run-dir={scene.run_dir.path}", str(SCRIPT)]
        self.launcher = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def is_over(self, scene: Scene) -> bool:
        """Where the disk holds everything up, it waits too."""
        if self.launcher.poll() is None:
            return False
        self._judge(scene)
        return True

    def _judge(self, scene: Scene) -> None:
        said = " ".join(self.launcher.communicate()[0].split())
        assert scene.disk is not None
        reason = "uses it" if scene.disk.harms == self.harms_before else "cannot be used"
        if self.launcher.returncode != _REFUSED or reason not in said:
            self.problem = f"a second launcher ended with code {self.launcher.returncode}: {said[-500:]}"
        elif scene.run_dir.secret_file.read_bytes() != self.secret:
            self.problem = "a second launcher that was refused has changed the secret of the job"


FAULTS: tuple[type[Fault], ...] = (TerminalClosed, SecondLauncher)
