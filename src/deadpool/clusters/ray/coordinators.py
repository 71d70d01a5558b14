"""The coordinator of a job on Ray: a process beside the driver, with which it ends. One that dies is started again.

It needs no place in the cluster: a job on Ray ends with its driver in any case, so the coordinator may as well.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import TracebackType

from deadpool.config.environment import SECRET_FILE_VARIABLE, SECRET_VARIABLE
from deadpool.config.job_config import JobConfig
from deadpool.control.launch.coordinator_processes import CoordinatorProcesses
from deadpool.control.launch.run_dir import RunDir
from deadpool.host.child_processes import end_with_parent, interrupts_held


class RayCoordinators:
    def __init__(self, config: JobConfig, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._processes = CoordinatorProcesses(config, run_dir, self._spawn)

    def __enter__(self) -> RayCoordinators:
        try:
            self._processes.start()
        except BaseException:
            self._processes.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._processes.stop()

    @property
    def places(self) -> list[str]:
        return self._processes.places

    def poll(self, *, deserted: bool) -> int | None:
        return self._processes.poll(deserted=deserted)

    def _spawn(
        self, command: list[str], end_signal: signal.Signals, *, pass_fds: tuple[int, ...] = ()
    ) -> subprocess.Popen[bytes]:
        variables = {**os.environ, SECRET_FILE_VARIABLE: str(self._run_dir.secret_file)}
        variables.pop(SECRET_VARIABLE, None)  # it would be the secret of another job
        with interrupts_held():
            return subprocess.Popen(
                [sys.executable, "-m", "deadpool.cli.main", *command],
                env=variables,
                stdin=subprocess.DEVNULL,
                process_group=0,
                pass_fds=pass_fds,
                preexec_fn=end_with_parent(end_signal),
            )
