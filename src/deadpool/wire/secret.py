"""The secret of a job, and what else a process needs to be one of it.

`UnusableSecret`: the job's secret: handed out through a file or the environment, never on a command line.

`Credentials`: what a process needs to be one of the job: its secret, and how connections are encrypted, if they are.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from deadpool.config.environment import SECRET_FILE_VARIABLE, SECRET_VARIABLE, TLS_VARIABLE
from deadpool.errors import ConfigError
from deadpool.wire.handshake import PLAIN
from deadpool.wire.tls import OFF, Tls, load_tls

LEAST_BYTES = 16


class UnusableSecret(ConfigError):
    """There is no secret, or it is none that DeadPool reads."""

    def __init__(self, found: str, cure: str) -> None:
        super().__init__(f"{found}: {cure}")
        self.found, self.cure = found, cure


def secret_is_given() -> bool:
    return SECRET_VARIABLE in os.environ or SECRET_FILE_VARIABLE in os.environ


def read_secret(default: Path | None = None) -> bytes:
    """From the environment, from the file it names, or from `default`."""
    if SECRET_VARIABLE in os.environ:
        return _checked(os.environ[SECRET_VARIABLE].encode(), SECRET_VARIABLE)
    if os.environ.get(SECRET_FILE_VARIABLE) == "":
        raise ConfigError(f"{SECRET_FILE_VARIABLE} is empty: set it to a file that holds the job's secret, or unset it")
    path = Path(os.environ[SECRET_FILE_VARIABLE]) if SECRET_FILE_VARIABLE in os.environ else default
    if path is None:
        raise UnusableSecret("the job's secret is unknown", f"set {SECRET_FILE_VARIABLE} to a file that holds it")
    return _checked(_read_own(path), str(path))


@contextlib.contextmanager
def handed_over(secret: bytes) -> Iterator[int]:
    """A descriptor for a child that cannot rely on the secret's file: a pipe, which has the secret in it already."""
    ours, theirs = os.pipe()
    try:
        with os.fdopen(theirs, "wb") as pipe:
            pipe.write(secret)
        yield ours
    finally:
        os.close(ours)


def read_handed_over(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as pipe:
        return _checked(pipe.read(), f"descriptor {descriptor}")


def _read_own(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & stat.S_IRWXO:
                raise UnusableSecret(f"the job's secret in {path} is open to every user", "chmod 600 it")
            return file.read()
    except OSError as error:
        raise UnusableSecret(
            f"the job's secret cannot be read ({path}: {error.strerror})",
            f"set {SECRET_FILE_VARIABLE} to a file that this user can read, as `secret` in the job's run folder",
        ) from error


def _checked(secret: bytes, where: str) -> bytes:
    secret = secret.strip()  # an editor's last line break is not part of it
    if not secret:
        raise UnusableSecret(
            f"the job's secret in {where} is empty", "copy it from the file `secret` of the job's run folder"
        )
    if len(secret) < LEAST_BYTES:
        raise UnusableSecret(f"the job's secret in {where} is too short", f"give at least {LEAST_BYTES} characters")
    return secret


@dataclass(frozen=True, slots=True)
class Credentials:
    secret: bytes = field(repr=False)
    tls: Tls | None = None

    @property
    def carrier(self) -> bytes:
        """The carrier of the connections that this process serves."""
        return self.tls.carrier if self.tls is not None else PLAIN


def read_credentials(
    *, serving: bool = False, tls: str | None = None, default_secret: Path | None = None
) -> Credentials:
    """Reads those of this process's job; its environment is enough in a process that an agent or the launcher started.

    `serving` is for a process that also takes connections, as an agent and every coordinator does, the first as well as
    a successor on another node: ephemeral certificates are each process's own, so nothing is handed over in a takeover.
    `tls` is used instead of the environment's, `default_secret` where the environment names none.
    """
    mode = tls if tls is not None else os.environ.get(TLS_VARIABLE, OFF)
    return Credentials(read_secret(default_secret), load_tls(mode, serving=serving))
