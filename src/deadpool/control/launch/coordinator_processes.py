"""The coordinator processes that a launcher starts: the first one, its standbys, and those that replace dead ones."""

from __future__ import annotations

import dataclasses
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from typing import Protocol

from deadpool.config.job_config import JobConfig, settings_for
from deadpool.config.values import COORDINATOR
from deadpool.control.launch.run_dir import RunDir, take_folder
from deadpool.errors import ConfigError
from deadpool.host.private_files import ProcessLock
from deadpool.wire.credentials import handed_over

Process = subprocess.Popen[bytes]


class Spawn(Protocol):
    def __call__(
        self, command: list[str], end_signal: signal.Signals, *, pass_fds: tuple[int, ...] = ()
    ) -> Process: ...


_START_S = 180.0
"""A machine may be slow; whether the process has died is seen at once."""
_STOP_S = 10.0
_DESERTED_S = 10.0
"""Without any node for so long, several coordinators are ended: none of them can know that the job is over."""
_RESTARTS = 20
"""The number of deaths after which a coordinator is not started again: something kills it each time."""


@dataclass(slots=True)
class _CoordinatorProcess:
    place: str  # HOST:PORT
    process: Process


class CoordinatorProcesses:
    """A coordinator that dies by a signal is started again at the same address. It takes over the job, or stands by.

    It is given the job's secret, and is told that the job has begun: the run folder may be gone by then."""

    def __init__(self, config: JobConfig, run_dir: RunDir, spawn: Spawn) -> None:
        self._config, self._run_dir, self._spawn = config, run_dir, spawn
        self._lock: ProcessLock | None = None
        self._secret = b""
        self._processes: list[_CoordinatorProcess] = []
        self._restarts = 0
        self._deserted_at: float | None = None
        self._code: int | None = None

    @property
    def places(self) -> list[str]:
        return [each.place for each in self._processes]

    def start(self) -> None:
        """When this returns, the first coordinator listens. ConfigError: another job uses the run folder."""
        self._lock = take_folder(self._run_dir)
        self._secret = self._run_dir.secret_file.read_bytes()
        ports = [self._config.port] if not self._config.standby_coordinators else self._free_ports()
        places = [f"{self._config.host}:{port}" for port in ports]
        for place in places:
            command = self._command(place, places if len(places) > 1 else [], faults=place == places[0])
            self._processes.append(_CoordinatorProcess(place, self._begin(command)))
        self._await(self._processes[0].process)
        self._processes[0].place = str(self._run_dir.coordinator())  # its port may have been any free one

    def poll(self, *, deserted: bool) -> int | None:
        """Restarts dead coordinators. Returns the job's exit code once there is one. `deserted`: no agent is left."""
        if self._is_over(deserted=deserted):
            self._code = 1
        codes = [each.process.poll() for each in self._processes]  # once: one that ends meanwhile is read the next time
        ended = [(each, code) for each, code in zip(self._processes, codes, strict=True) if code is not None]
        if self._code is None:
            self._code = next((code for each, code in ended if code >= 0 and self._is_leading(each)), None)
        killed = [each for each, code in ended if code < 0][: _RESTARTS - self._restarts]
        if self._code is None and killed:
            for each in killed:
                self._start_again(each)
        elif self._code is None and None not in codes:
            # Which of them led is not known, as a full disk may have kept it from saying so. All ended well: so did it.
            self._code = 0 if not any(codes) else 1
        return self._code

    def _start_again(self, each: _CoordinatorProcess) -> None:
        self._restarts += 1
        places = self.places if len(self._processes) > 1 else []
        command = self._command(each.place, places, faults=False)
        with handed_over(self._secret) as secret:
            each.process = self._begin([*command, "--again", f"--secret-from={secret}"], secret)

    def _begin(self, command: list[str], *descriptors: int) -> Process:
        """Coordinators have the lock of the folder too: as long as one of them lives, no other job begins there."""
        assert self._lock is not None
        lock = self._lock.descriptor
        return self._spawn([*command, f"--lock={lock}"], signal.SIGTERM, pass_fds=(lock, *descriptors))

    def _is_over(self, *, deserted: bool) -> bool:
        """A single coordinator ends the job itself, or waits for nodes to be added."""
        if not deserted or len(self._processes) == 1 or self._code is not None:
            self._deserted_at = None
        elif self._deserted_at is None:
            self._deserted_at = time.monotonic()
        return self._deserted_at is not None and time.monotonic() > self._deserted_at + _DESERTED_S

    def leading(self) -> Process:
        """The process that is the coordinator, or was last."""
        return next((each.process for each in self._processes if self._is_leading(each)), self._processes[0].process)

    def stop(self) -> None:
        """Ends the present coordinator first: it tells the others that the job is over."""
        if self._processes:
            first = self.leading()
            for process in (first, *(each.process for each in self._processes if each.process is not first)):
                _end(process)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def kill(self) -> None:
        """Ends them without a word, also one that is stopped and would not see another signal."""
        for each in self._processes:
            each.process.kill()

    def _is_leading(self, each: _CoordinatorProcess) -> bool:
        """One that is alone leads even if a full disk has kept it from saying so."""
        if len(self._processes) == 1:
            return True
        return self._run_dir.is_led_by(each.process.pid)

    def _await(self, process: Process) -> None:
        deadline = time.monotonic() + _START_S
        while not self._run_dir.is_known:
            if process.poll() is not None or time.monotonic() > deadline:
                console = self._run_dir.path / "console.log"
                where = f"{console} says" if console.exists() else "its last line above says"
                raise ConfigError(f"the coordinator did not start: {where} why, and what to do")
            time.sleep(0.01)

    def _free_ports(self) -> list[int]:
        """Ports are chosen beforehand, since each coordinator has to know where the others listen."""
        listeners = [socket.create_server((self._config.host, 0)) for _ in range(1 + self._config.standby_coordinators)]
        ports = [listener.getsockname()[1] for listener in listeners]
        for listener in listeners:
            listener.close()
        return [self._config.port or ports[0], *ports[1:]]

    def _command(self, place: str, places: list[str], *, faults: bool) -> list[str]:
        """Faults are injected once, and not again by a coordinator that takes over."""
        host, _, port = place.rpartition(":")
        own: dict[str, object] = {"host": host, "port": port, "interface": "", "coordinators": ",".join(places)}
        own["metrics_port"] = self._config.metrics_port_of(places.index(place) if places else 0)
        values = {**dataclasses.asdict(self._config), **own, "faults": self._config.faults if faults else ()}
        words = [word for each in settings_for(COORDINATOR) for word in each.words(values[each.name])]
        return ["coordinator", f"--run-dir={self._run_dir.path}", *words]


def _end(process: Process) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
