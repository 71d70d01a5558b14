"""A job's folder: its secret, where its coordinator listens, its event log, its trainers' logs. Owner-only."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deadpool.errors import ConfigError
from deadpool.protocol.topology import Address


@dataclass(frozen=True, slots=True)
class RunDir:
    path: Path

    @classmethod
    def create(cls, path: Path) -> RunDir:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        run_dir = cls(path)
        run_dir.logs.mkdir(exist_ok=True, mode=0o700)
        return run_dir

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def secret_file(self) -> Path:
        return self.path / "secret"

    def make_secret(self) -> bytes:
        descriptor = os.open(self.secret_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        return self.secret_file.read_bytes()

    @property
    def is_known(self) -> bool:
        """Somebody has been in office here."""
        return (self.path / "job.json").exists()

    def forget(self) -> None:
        """A new job begins in this folder."""
        (self.path / "job.json").unlink(missing_ok=True)

    def announce(self, address: Address, **facts: Any) -> None:
        """By whoever takes office. Written at once and whole: a command may look at any moment."""
        draft = self.path / f"job.json.{os.getpid()}"
        draft.write_text(json.dumps({"host": address.host, "port": address.port, **facts}), encoding="utf-8")
        draft.replace(self.path / "job.json")

    def coordinator(self) -> Address:
        """Who is in office, or was last."""
        job = self._announced()
        return Address(host=job["host"], port=job["port"])

    def coordinator_pid(self) -> int:
        return int(self._announced()["pid"])

    def _announced(self) -> dict[str, Any]:
        try:
            job = json.loads((self.path / "job.json").read_text(encoding="utf-8"))
            return {name: job[name] for name in ("host", "port", "pid")}
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"{self.path} is not the folder of a job: {error}") from error
