"""What the batch script runs: srun over all nodes, and the exit code of the job.

Nodes that died may keep srun waiting until Slurm calls them DOWN; the result in the run folder is what counts.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

from deadpool.clusters.slurm import client
from deadpool.clusters.slurm.batch_script import SRUN, spare_name
from deadpool.clusters.slurm.client import SlurmError
from deadpool.clusters.slurm.run_folder import RunFolder
from deadpool.control.console import print_line
from deadpool.control.coordinator.event_text import console_line
from deadpool.events.event import read_events
from deadpool.host.child_processes import end_with_parent

_POLL_S = 0.5
_SRUN_S = 5.0
"""After the job's end, for the tasks of all nodes to end."""
_NO_BEAT_S = 60.0


@dataclass(slots=True)
class BatchHost:
    folder: RunFolder
    job_id: str
    command: Sequence[str]  # what srun starts on each node
    srun: Sequence[str] = ()
    _printed: int = 0
    _ended_by: int = 0

    def run(self) -> int:
        """Returns the job's exit code."""
        signal.signal(signal.SIGTERM, self._on_signal)
        srun = subprocess.Popen(
            [*SRUN, *self.srun, *self.command], stdin=subprocess.DEVNULL, preexec_fn=end_with_parent(signal.SIGTERM)
        )
        try:
            code = self._await_result(srun)
            self.folder.acknowledge()
            self._print_events()
            _await_end(srun, _SRUN_S)
            self._cancel_spares()
            print_line(f"[deadpool] job {self.job_id} ended with {code}")
            return code
        finally:
            if srun.poll() is None:
                srun.terminate()
                _await_end(srun, _SRUN_S)
            if srun.poll() is None:
                srun.kill()
                srun.wait()

    def _await_result(self, srun: subprocess.Popen[bytes]) -> int:
        """srun may die alone, or wait for ever. Without it the job is over when no coordinator acts any more."""
        beat, since = self.folder.last_beat(), time.monotonic()
        while (result := self.folder.result()) is None:
            if self._ended_by:
                return 128 + self._ended_by
            if (newest := self.folder.last_beat()) != beat or srun.poll() is None:
                beat, since = newest, time.monotonic()
            elif time.monotonic() > since + (_NO_BEAT_S if beat is not None else 0):
                return srun.returncode or 1
            self._print_events()
            time.sleep(_POLL_S)
        return result

    def _print_events(self) -> None:
        records = read_events(self.folder.run_dir.events)
        for record in records[self._printed :]:
            if line := console_line(record):
                print_line(f"[deadpool] {line}")
        self._printed = len(records)

    def _cancel_spares(self) -> None:
        try:
            client.cancel([each.job_id for each in client.own_jobs(spare_name(self.job_id))])
        except SlurmError as error:
            print_line(f"[deadpool] jobs that bring spares could not be cancelled: {error}")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._ended_by = number


def _await_end(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return
