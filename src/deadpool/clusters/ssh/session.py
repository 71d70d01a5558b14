"""What ssh starts on a host.

`socket_name` and `main`: what ssh starts on a host (`python -m`): it answers for the host, then passes lines between
launcher and daemon.

It lives as long as one ssh connection. The daemon outlives it: a connection that is lost does not end the job.

How a dead launcher is told from a lost connection: when the launcher dies, ssh reads the end of its standard input,
or cannot write its output any more, and passes that on. When the connection is lost, sshd closes standard error as
well, to which nothing is ever written. Only the first ends the job at once.

`gather`: what a host says about itself before anything is started there.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from deadpool import __version__
from deadpool.clusters.ssh.upstream import LINE_LIMIT_BYTES, decode, encode, encode_marked
from deadpool.errors import ConfigError
from deadpool.host.private_files import make_private_folder, open_private
from deadpool.wire.deadline import address_of

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


_STDIN, _STDOUT, _STDERR = 0, 1, 2
_CHUNK_BYTES = 1 << 16
_ALL_CLOSED_S = 1.0
"""sshd closes the pipes of a lost connection one after the other, within much less than this."""
_BROKEN = select.POLLERR | select.POLLHUP | select.POLLNVAL


def socket_name(run: str, node: str) -> str:
    """An abstract socket, which leaves no file. Nobody else can guess the run, and the user is checked as well."""
    return f"\0deadpool-ssh-{run}-{node}"


def main() -> None:
    pending = b""
    while True:
        line, pending = _read_line(pending)
        if line is None:
            return
        order = decode(line)
        if order is None:
            continue
        if order["op"] == "ask":
            _say("facts", **gather(order["folder"], order["script"], order["interface"]))
        elif order["op"] == "clock":
            _say("clock", time=time.time())
        elif order["op"] in ("attach", "start"):
            link = _attach(order) if order["op"] == "attach" else _start(order)
            if link is not None:
                _say("attached")
                _relay(link, pending)
                return
            _say("absent")


def _say(op: str, **fields: Any) -> None:
    os.write(_STDOUT, encode_marked(op, **fields))


def _read_line(pending: bytes) -> tuple[bytes | None, bytes]:
    while b"\n" not in pending:
        chunk = os.read(_STDIN, _CHUNK_BYTES)
        if not chunk or len(pending) > LINE_LIMIT_BYTES:
            return None, b""
        pending += chunk
    line, _, rest = pending.partition(b"\n")
    return line, rest


def _attach(order: dict[str, Any]) -> socket.socket | None:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.connect(socket_name(order["run"], order["node"]))
        return link
    except OSError:
        link.close()
        return None


def _start(order: dict[str, Any]) -> socket.socket | None:
    """The order has the job's secret in it, so it goes to the daemon through a pipe."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(socket_name(order["run"], order["node"]))
        listener.listen(4)
        os.chdir(order["folder"])
        folder = Path(order["node_folder"])
        make_private_folder(folder)
        with open_private(folder / "daemon.log", "ab") as log:
            daemon = subprocess.Popen(
                [sys.executable, "-m", "deadpool.clusters.ssh.daemon", str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[listener.fileno()],
                start_new_session=True,
                env={**os.environ, **order["environment"]},
            )
        assert daemon.stdin is not None
        with daemon.stdin:
            daemon.stdin.write(encode(**order))
    return _attach(order)


def _relay(link: socket.socket, pending: bytes) -> None:
    """Returns when the daemon has ended, or the connection. The launcher's end becomes an order to end the job."""
    link.sendall(pending)
    poll = select.poll()
    poll.register(_STDIN, select.POLLIN)
    poll.register(link, select.POLLIN)
    for descriptor in (_STDOUT, _STDERR):
        poll.register(descriptor, 0)
    while True:
        ready = dict(poll.poll())
        if ready.get(_STDERR, 0) & _BROKEN:
            return
        if ready.get(_STDOUT, 0) & _BROKEN:
            break
        if link.fileno() in ready:
            data = link.recv(_CHUNK_BYTES)
            if not data:
                return
            if not _write_all(data):
                break
        if _STDIN in ready:
            data = os.read(_STDIN, _CHUNK_BYTES)
            if not data:
                break
            link.sendall(data)
    if not _connection_is_lost():
        link.sendall(encode("end", reason="the launcher is gone"))
        _await_end(link)


def _connection_is_lost() -> bool:
    poll = select.poll()
    poll.register(_STDERR, 0)
    return bool(poll.poll(1000 * _ALL_CLOSED_S))


def _await_end(link: socket.socket) -> None:
    """Passes the last lines on, if anybody reads them."""
    while data := link.recv(_CHUNK_BYTES):
        _write_all(data)


def _write_all(data: bytes) -> bool:
    """Returns whether anybody reads it."""
    try:
        while data:
            data = data[os.write(_STDOUT, data) :]
    except BrokenPipeError:
        return False
    return True


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, ConnectionError):
        sys.exit(1)  # the connection, or the daemon, is gone; the other side sees it
