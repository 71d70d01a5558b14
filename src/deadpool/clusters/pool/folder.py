"""What a pool and its machines keep on disk, so that one that is started again knows what the last one knew."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

import msgspec

from deadpool.errors import ConfigError
from deadpool.host.owner_only import open_private
from deadpool.protocol.messages import PoolJob


def read_jobs(path: Path) -> tuple[PoolJob, ...]:
    """Nothing, if there is no such file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=tuple[PoolJob, ...])
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f"{path} does not hold the jobs of a pool ({error}): remove it, and add them again"
        ) from error


def write_jobs(path: Path, jobs: tuple[PoolJob, ...]) -> None:
    """The file is replaced at once: whoever reads it finds all or the state before."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    with open_private(draft, "wb") as file:
        file.write(msgspec.json.encode(jobs))
    draft.replace(path)


def machine_identity(folder: Path) -> str:
    """The same for every process that is started in this folder, and another for every other machine."""
    path = folder / "identity"
    try:
        token = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        token = secrets.token_hex(4)
        with open_private(path, "w") as file:
            file.write(token)
    return f"{socket.gethostname()}:{folder} ({token})"
