"""What a process needs to be one of the job: its secret, and how connections are encrypted, if they are."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from deadpool.config.environment import TLS_VARIABLE
from deadpool.wire.handshake import PLAIN
from deadpool.wire.secret import read_secret
from deadpool.wire.tls import OFF, Tls, load_tls


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
