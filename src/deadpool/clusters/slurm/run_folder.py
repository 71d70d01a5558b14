"""The job's run folder, which all its nodes share. Only its owner can read it.

It has what every run folder has (secret, job.json, events, logs), and files of which each has one writer at a time.
They are replaced as a whole, so that readers never see half a file, and are named after the attempt that they
belong to: a requeued job is another attempt, and nodes that were cut off may still run the last one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deadpool.control.launch.run_dir import RunDir
from deadpool.errors import ConfigError
from deadpool.host.private_files import make_private_folder, open_private

_POLL_S = 0.2
START_S = 180.0
"""The time that other nodes have to write what this one waits for. A shared file system may show a new file late."""
_SILENT_S = 10.0
"""A job that does not beat for so long is over: its acting coordinator's node beats every three seconds."""
_SUBMITTED = "submitted.json"
_OF_ONE_ATTEMPT = ("job.json", "events.jsonl", "logs", "journal")


def _job_of(attempt: str) -> str:
    return attempt.partition(".")[0]


def note_submission(path: Path, job_id: str) -> None:
    """By the login node, so that whoever looks at a job that has not started is told what it waits for."""
    with open_private(path / _SUBMITTED, "w") as file:
        json.dump({"job": job_id}, file)


def submitted_job(path: Path) -> str | None:
    try:
        return str(json.loads((path / _SUBMITTED).read_text(encoding="utf-8"))["job"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class RunFolder:
    path: Path
    attempt: str  # Slurm's job id, and how often that job was requeued

    @property
    def run_dir(self) -> RunDir:
        return RunDir(self.path)

    # --- the beginning ------------------------------------------------------------------------------------------------

    def begin(self, description: dict[str, Any]) -> None:
        """Called by one process per attempt, or by two of one node. What the last attempt left goes into a folder of
        its own, and the secret is a new one: processes of the last attempt are not let in."""
        make_private_folder(self.path)
        before = self._read("slurm.json")
        if before is not None and before["attempt"] == self.attempt:
            return
        if before is not None:
            self._refuse_if_used(str(before["attempt"]))
        if before is not None:
            self._put_away(str(before["attempt"]))
        RunDir.create(self.path).make_secret()
        self._write("slurm.json", {"attempt": self.attempt, "began": time.time(), **description})

    def _refuse_if_used(self, attempt: str) -> None:
        """By another job, that is: a requeued job has its id again, and its last attempt is over. Clocks of nodes
        differ, so a beat is one that changes while this one looks."""
        other = RunFolder(self.path, attempt)
        if _job_of(attempt) == _job_of(self.attempt) or other.result() is not None:
            return
        first, deadline = other.last_beat(), time.monotonic() + _SILENT_S
        while first is not None and time.monotonic() < deadline:
            if other.last_beat() not in (None, first):
                raise ConfigError(
                    f"run_dir={str(self.path)!r} cannot be used: job {_job_of(attempt)} of Slurm runs in it; wait for "
                    "its end, or give another one"
                )
            time.sleep(_POLL_S)

    def _put_away(self, attempt: str) -> None:
        (self.path / "slurm.json").unlink()  # first: nobody may take the rest for that of this attempt
        old = self.path / f"attempt-{attempt}"
        make_private_folder(old)
        for name in _OF_ONE_ATTEMPT:
            if (self.path / name).exists():
                (self.path / name).rename(old / name)

    def description(self) -> dict[str, Any] | None:
        """None: this attempt has not begun, or another one has."""
        found = self._read("slurm.json")
        return found if found is not None and found["attempt"] == self.attempt else None

    def await_begun(self) -> dict[str, Any]:
        begun: dict[str, Any] = self._await(
            self.description, f"the first node has not prepared {self.path} for job {self.attempt}"
        )
        return begun

    # --- where coordinators are ---------------------------------------------------------------------------------------

    def publish_place(self, index: int, place: str) -> None:
        self._write(self._own(f"place-{index}"), place)

    def await_places(self, count: int) -> list[str]:
        def places() -> list[str] | None:
            found = [self._read(self._own(f"place-{index}")) for index in range(count)]
            return [str(place) for place in found] if None not in found else None

        found: list[str] = self._await(
            places, f"the coordinators' nodes have not written their addresses to {self.path}"
        )
        return found

    # --- while it runs ------------------------------------------------------------------------------------------------

    def beat(self) -> None:
        """By the node of the acting coordinator, every few seconds."""
        self._write(self._own("alive"), {"t": time.time(), "node": os.uname().nodename})

    def last_beat(self) -> Any:
        """Something that changes as long as a coordinator acts."""
        return self._read(self._own("alive"))

    @property
    def notice_file(self) -> Path:
        """The file that tells training scripts that the allocation ends soon. It appears then."""
        return self.path / self._own("notice")

    def set_notice(self, reason: str, ends_at: float | None) -> None:
        self._write(self.notice_file.name, {"reason": reason, "ends_at": ends_at})

    # --- the end ------------------------------------------------------------------------------------------------------

    def set_result(self, code: int, reason: str) -> None:
        """The first one counts."""
        if self.result() is None:
            self._write(self._own("result"), {"code": code, "reason": reason})

    def result(self) -> int | None:
        """The job's exit code; None: it has not ended."""
        found = self._read(self._own("result"))
        return int(found["code"]) if found is not None else None

    def acknowledge(self) -> None:
        """By the batch script, which from then on ends the Slurm job itself."""
        self._write(self._own("acknowledged"), {})

    def is_acknowledged(self) -> bool:
        return self._read(self._own("acknowledged")) is not None

    # --- files --------------------------------------------------------------------------------------------------------

    def _own(self, name: str) -> str:
        return f"{name}-{self.attempt}.json"

    def _write(self, name: str, value: Any) -> None:
        draft = self.path / f".{name}.{os.uname().nodename}.{os.getpid()}"
        with open_private(draft, "w") as file:
            json.dump(value, file)
        draft.replace(self.path / name)

    def _read(self, name: str) -> Any:
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def _await(self, look: Callable[[], Any], complaint: str) -> Any:
        deadline = time.monotonic() + START_S
        while (found := look()) is None:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"{complaint} within {START_S:g} s: the run folder has to be on a file system that all nodes "
                    "share; give another one with --run-dir"
                )
            if self.path.is_dir():
                list(self.path.iterdir())  # lets NFS clients look again
            time.sleep(_POLL_S)
        return found
