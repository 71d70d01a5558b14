"""The command that runs while a machine is parked, as its agent or pool host sees it: start, stop, its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from deadpool.config.environment import PARKED_PREFIX, SECRET_FILE_VARIABLE, SECRET_VARIABLE
from deadpool.control.console import print_line
from deadpool.control.trainers.parked_keeper import running_descendants
from deadpool.host.child_processes import end_with_parent, interrupts_held
from deadpool.protocol.inputs import ParkedWorkEnded

GRACE_S = 0.4
"""The time from SIGTERM to SIGKILL. Whatever the command does, it is gone within a second."""
_LOST, _NOT_STARTED = -9, 127
_KILL_S, _CHECK_S = 1.0, 0.01


class ParkedCommand:
    """`on_ended` is called when the command and all that it started are gone."""

    def __init__(
        self, command: str, log: Path, facts: Mapping[str, str], on_ended: Callable[[ParkedWorkEnded], None]
    ) -> None:
        """`facts` tell the command where it runs, as variables of its environment."""
        self._command, self._log, self._facts, self._on_ended = command, log, facts, on_ended
        self._keeper: subprocess.Popen[bytes] | None = None
        self._stopped_at: float | None = None
        self._gone = asyncio.Event()

    def start(self, number: int) -> None:
        self._stopped_at = None
        self._gone.clear()
        try:
            self._keeper = keeper = self._start_keeper(number)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            print_line(f"[deadpool] the command of --while-parked cannot be started now: {error}")
            asyncio.get_running_loop().call_soon(self._on_ended, ParkedWorkEnded(code=_NOT_STARTED))
            return
        assert keeper.stdout is not None
        asyncio.get_running_loop().add_reader(keeper.stdout.fileno(), self._on_output, keeper)

    def _start_keeper(self, number: int) -> subprocess.Popen[bytes]:
        words = [
            sys.executable,
            "-m",
            "deadpool.control.trainers.parked_keeper",
            str(GRACE_S),
            str(self._log),
            self._command,
        ]
        with interrupts_held():
            return subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                env=self._environment(number),
                start_new_session=True,
                preexec_fn=end_with_parent(signal.SIGTERM),
            )

    def _environment(self, number: int) -> dict[str, str]:
        """Returns the environment of the command, without the secret of any job: it needs none."""
        variables = {name: value for name, value in os.environ.items() if name not in _SECRETS}
        told = {**self._facts, "start": str(number)}
        return variables | {f"{PARKED_PREFIX}{name.upper()}": value for name, value in told.items()}

    def stop(self) -> None:
        if self._keeper is not None and self._stopped_at is None:
            self._stopped_at = time.monotonic()
            self._keeper.terminate()

    async def close(self) -> None:
        self.stop()
        if self._keeper is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), 2 * GRACE_S)
        if self._keeper is not None:
            await self._kill_descendants(self._keeper.pid)
        if self._keeper is not None:
            self._keeper.kill()
            self._finish(self._keeper)

    async def _kill_descendants(self, keeper: int) -> None:
        """A keeper that gets no CPU time does not do it in time, and whoever it has not killed outlives it: they are
        found only for as long as it lives."""
        deadline = time.monotonic() + _KILL_S
        while (found := running_descendants(keeper)) and time.monotonic() < deadline:
            for pid in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(_CHECK_S)

    def _on_output(self, keeper: subprocess.Popen[bytes]) -> None:
        """One line, which the keeper writes as the last thing it does; or nothing, if it was killed."""
        words = self._finish(keeper)
        took_s = time.monotonic() - self._stopped_at if self._stopped_at is not None else 0.0
        code, killed = (int(words[0]), int(words[1])) if len(words) == 2 else (_LOST, 0)
        self._on_ended(ParkedWorkEnded(code=code, took_s=round(took_s, 4), killed=killed))

    def _finish(self, keeper: subprocess.Popen[bytes]) -> list[str]:
        assert keeper.stdout is not None
        asyncio.get_running_loop().remove_reader(keeper.stdout.fileno())
        words = keeper.stdout.read().decode().split()
        keeper.stdout.close()
        keeper.wait()
        self._keeper = None
        self._gone.set()
        return words


_SECRETS = (SECRET_VARIABLE, SECRET_FILE_VARIABLE)
