"""What a host says about itself before anything is started there."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import sys
from pathlib import Path
from typing import Any

from deadpool import __version__
from deadpool.errors import ConfigError
from deadpool.wire.interfaces import address_of

_PACKAGES = ("torch", "numpy")


def gather(folder: str, script: str | None, interface: str) -> dict[str, Any]:
    """`script` is None for a module. Problems are sentences: they go into the table of the launcher."""
    problems: list[str] = []
    try:
        os.chdir(folder)
    except OSError as error:
        problems.append(f"the working folder {folder!r} cannot be entered: {error.strerror}")
    else:
        if script is not None and not Path(script).is_file():
            problems.append(f"there is no script {script!r} in {folder!r}")
    try:
        address = address_of(interface) if interface else _address_of_connection()
    except ConfigError as error:
        address = ""
        problems.append(str(error))
    return {
        "host": socket.gethostname(),
        "user": _user(),
        "address": address,
        "port": _free_port(address) if address else 0,
        "deadpool": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        **{package: _version(package) for package in _PACKAGES},
        "problems": problems,
    }


def _address_of_connection() -> str:
    """Where the launcher reached this host, which other hosts mostly can, too. IPv6 is not spoken here."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    address = words[2] if len(words) == 4 else ""
    if address.count(".") != 3:
        where = f"was reached at {address}" if address else "does not say at which address it was reached"
        raise ConfigError(f"this host {where}: write address=IPV4 behind it in the hosts file, or give --interface")
    return address


def _free_port(address: str) -> int:
    """Chosen beforehand, since each coordinator has to know where the others listen. 0: the address is not of here."""
    try:
        with socket.create_server((address, 0)) as listener:
            return int(listener.getsockname()[1])
    except OSError:
        return 0


def _version(package: str) -> str:
    """Without importing it, which takes seconds."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
