"""The job's secret: handed out through a file or the environment, never on a command line."""

from __future__ import annotations

import os
from pathlib import Path

from deadpool.errors import ConfigError

SECRET_VARIABLE = "DEADPOOL_SECRET"
SECRET_FILE_VARIABLE = "DEADPOOL_SECRET_FILE"


def read_secret(default: Path | None = None) -> bytes:
    """From the environment, from the file it names, or from `default`."""
    if SECRET_VARIABLE in os.environ:
        return os.environ[SECRET_VARIABLE].encode()
    path = Path(os.environ[SECRET_FILE_VARIABLE]) if SECRET_FILE_VARIABLE in os.environ else default
    if path is None:
        raise ConfigError(f"the job's secret is unknown: set {SECRET_FILE_VARIABLE} to a file that holds it")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"the job's secret cannot be read: {error}") from error
