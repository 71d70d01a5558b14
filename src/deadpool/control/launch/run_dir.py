"""The run folder of a job.

`RunDir`: a job's run folder: its secret, the address of its coordinator, its event log, its trainers' logs and
journal.

Only its owner can read it.

A new job takes a run folder: it gets a log of its own, whatever way it is started in.

Two jobs in one log would look like one, whose causes have the same names and whose time between them counted as
trained. Nobody else puts a job's files away.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deadpool.control.console import print_line
from deadpool.control.launch.folder_lock import lock_folder, unusable
from deadpool.errors import ConfigError
from deadpool.events.event import read_events
from deadpool.host.private_files import ProcessLock, make_private_folder, open_private
from deadpool.protocol.identity import Address
from deadpool.wire.credentials import OFF, Credentials, load_tls, read_credentials, settled

_ENDS, _GOES_ON = ("completed", "failed"), ("planned", "took_over")
_LOGS, _JOURNAL, _EARLIER = "logs", "journal", "earlier"
KEPT_FOLDER = "kept"
"""The folder below the logs with what the agents of a job that could not go on have written."""


def journal_folder(logs: Path) -> Path:
    """Where job.log writes unless the script says otherwise: in the run folder, or in an agent's own folder of logs."""
    whole = logs.resolve()
    return (whole.parent if whole.name == _LOGS else whole) / _JOURNAL


@dataclass(frozen=True, slots=True)
class RunDir:
    path: Path

    @classmethod
    def create(cls, path: Path, setting: str = "run_dir") -> RunDir:
        """Raises ConfigError where there can be no folder. `setting` is what the user calls it."""
        run_dir = cls(path)
        with run_dir._refusing(setting):
            make_private_folder(path)
            make_private_folder(run_dir.logs)
        return run_dir

    @contextlib.contextmanager
    def _refusing(self, setting: str = "run_dir") -> Iterator[None]:
        """What has to be on disk before a job begins: where it cannot be written, the job is refused."""
        try:
            yield
        except OSError as error:
            raise unusable(setting, self.path, error) from None

    @property
    def logs(self) -> Path:
        return self.path / _LOGS

    @property
    def journal(self) -> Path:
        return journal_folder(self.logs)

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def secret_file(self) -> Path:
        return self.path / "secret"

    def make_secret(self, setting: str = "run_dir") -> bytes:
        secret = secrets.token_hex(32)
        with self._refusing(setting), open_private(self.secret_file, "w") as file:
            file.write(secret)
        return secret.encode()

    def restore(self, secret: bytes | None) -> None:
        """What a running job needs here, where somebody has removed it. Of the secret nobody ever reads a part.
        The folder itself is not made: it may be gone since it was looked at, and come back as it was."""
        make_private_folder(self.logs, parents=False)
        if secret is None or self.secret_file.exists():
            return
        draft = self.path / f"secret.{os.getpid()}"
        with open_private(draft, "wb") as file:
            file.write(secret)
        draft.replace(self.secret_file)

    @property
    def is_known(self) -> bool:
        """Whether a coordinator has led a job in this folder, as far as its disk says."""
        try:
            return (self.path / "job.json").exists()
        except OSError:
            return False

    def put_earlier_job_away(self) -> RunDir | None:
        """Called by `new_job` when a new job begins in this folder. Journals and kept copies stay: the new job may go
        on from them. Returns where the earlier job is now, which is a run folder again. Its log is moved last: it says
        that the job has ended, if this process is killed meanwhile."""
        if not any((self.path / name).exists() for name in ("job.json", "events.jsonl")) and not self._has_logs():
            return None
        number = 1 + sum(1 for _ in self.path.glob(f"{_EARLIER}-*"))
        earlier = RunDir.create(self.path / f"{_EARLIER}-{number}")
        with self._refusing():
            for each in self.logs.iterdir():
                if each.name != KEPT_FOLDER:
                    each.rename(earlier.logs / each.name)
            for each in (self.path / "job.json", self.events):
                if each.exists():
                    each.rename(earlier.path / each.name)
        return earlier

    def _has_logs(self) -> bool:
        """Tells whether there are logs of an agent whose coordinator was elsewhere."""
        return self.logs.is_dir() and any(each.name != KEPT_FOLDER for each in self.logs.iterdir())

    def has_ended(self) -> bool:
        """Whether the last job in this folder has ended, as far as its log says."""
        marks = [record["what"] for record in read_events(self.events) if record["what"] in (*_ENDS, *_GOES_ON)]
        return bool(marks) and marks[-1] in _ENDS

    def credentials(self, *, serving: bool = False, tls: str | None = None, secret: bytes | None = None) -> Credentials:
        """What a process of this job needs to connect, and with `serving` to listen. `tls` is as announced unless
        given, and `secret` is read unless given."""
        mode = tls if tls is not None else self.tls()
        if secret is not None:
            return Credentials(secret, load_tls(mode, serving=serving))
        return read_credentials(serving=serving, tls=mode, default_secret=self.secret_file)

    def announce(
        self, address: Address, *, tls: str, still: Callable[[], bool] = lambda: True, **facts: object
    ) -> None:
        """Called by the process that becomes the coordinator. The file is replaced at once: a command may read it any
        time. `still` says, after a disk has taken its time, whether this process is the coordinator."""
        draft = self.path / f"job.json.{os.getpid()}.{threading.get_ident()}"
        with open_private(draft, "w") as file:
            place = {"host": address.host, "port": address.port, "pid": os.getpid(), "tls": settled(tls)}
            json.dump(place | facts, file)
        if still():
            draft.replace(self.path / "job.json")
        else:
            draft.unlink()

    def coordinator(self) -> Address:
        """The address of the coordinator, or of the last one."""
        job = self._announced()
        return Address(host=job["host"], port=job["port"])

    def coordinator_pid(self) -> int:
        return int(self._announced()["pid"])

    def is_led_by(self, pid: int) -> bool:
        """Whether job.json names this process. While it cannot be read nobody knows, so that is asked again later."""
        try:
            return self.coordinator_pid() == pid
        except ConfigError:
            return False

    def is_led_from(self, place: str) -> bool:
        """The same by HOST:PORT, for those who look from another machine."""
        try:
            return str(self.coordinator()) == place
        except ConfigError:
            return False

    def tls(self) -> str:
        """How connections to this job are encrypted."""
        return str(self._announced()["tls"])

    def _announced(self) -> dict[str, Any]:
        try:
            job = json.loads((self.path / "job.json").read_text(encoding="utf-8"))
            place = Address.parse(f"{job['host']}:{job['port']}")
            return {"host": place.host, "port": place.port, "pid": int(job["pid"]), "tls": job.get("tls", OFF)}
        except OSError as error:
            raise ConfigError(
                f"{self.path} is not the run folder of a job (its job.json: {error.strerror}): give the folder that "
                "`deadpool run` printed"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{self.path}/job.json, which says where the coordinator is, is damaged: it cannot be asked, though "
                f"the job itself may run. `deadpool show story {self.path}` reads what happened; a coordinator that is "
                "started again writes the file anew"
            ) from error


_MARK = "run"


def take_folder(run_dir: RunDir) -> ProcessLock:
    """Takes the folder for a launcher whose job begins now, and returns its lock. ConfigError: another job uses it. The
    secret is a new one: nothing that is left of the earlier job is let in."""
    lock = lock_folder(run_dir.path, "run_dir")
    try:
        put_earlier_job_away(run_dir)
        run_dir.make_secret()
    except BaseException:
        lock.close()
        raise
    return lock


def put_earlier_job_away(run_dir: RunDir) -> None:
    """Where it is known that a new job begins."""
    if (earlier := run_dir.put_earlier_job_away()) is not None:
        print_line(
            f"[deadpool] this folder is that of an earlier job, whose log is in {earlier.path} now. This job "
            "begins anew, or from the earlier one's newest checkpoint with --durable and --resume auto"
        )


def put_ended_job_away(run_dir: RunDir) -> None:
    """Puts an ended job away for a coordinator that somebody starts by hand: a job that has not ended is one that it
    takes over.
    """
    if run_dir.has_ended():
        put_earlier_job_away(run_dir)


def put_other_run_away(run_dir: RunDir, run: str) -> None:
    """For a node's own folder, which a process enters that may be started several times in one run of a job."""
    mark = run_dir.path / _MARK
    if mark.exists() and mark.read_text(encoding="utf-8") == run:
        return
    put_earlier_job_away(run_dir)
    with open_private(mark, "w") as file:
        file.write(run)
