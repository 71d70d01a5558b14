"""The process on a host that owns what the job has started there (`python -m`, with its listening socket as argument).

It outlives ssh connections: it ends its processes when it is told to, or when it has heard nothing from the launcher
for the time of its lease. Nothing that it started outlives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from deadpool.clusters.ssh.managed_process import ManagedProcess, RunNews
from deadpool.clusters.ssh.upstream import LINE_LIMIT_BYTES, Upstream, decode, encode
from deadpool.config.environment import SECRET_FILE_VARIABLE, SECRET_VARIABLE
from deadpool.control.launch.run_dir import RunDir, put_other_run_away
from deadpool.host.private_files import open_private
from deadpool.wire.credentials import handed_over

_PR_SET_CHILD_SUBREAPER = 36
_CREDENTIALS = struct.Struct("iII")
_TICK_S = 0.1
_COORDINATOR_STOP_S = 8.0
_AGENT_STOP_S = 3.0
_RESTARTS = 20
"""The number of deaths after which a coordinator is not started again: something kills it each time."""


class Daemon:
    def __init__(self, order: dict[str, Any], listener: socket.socket) -> None:
        self._order, self._listener = order, listener
        self._folder = RunDir.create(Path(order["node_folder"]).absolute())
        put_other_run_away(self._folder, order["run"])
        self._console = open_private(self._folder.path / "console.log", "ab")
        self._upstream = Upstream()
        self._news = RunNews(self._folder, self._upstream)
        self._heard_at = time.monotonic()
        self._agent: ManagedProcess | None = None
        self._coordinator: ManagedProcess | None = None
        self._restarts = 0
        self._secret: str = order.pop("secret")
        self._end_reason: str | None = None

    async def run(self) -> None:
        self._write_secret()
        server = await asyncio.start_unix_server(self._serve, sock=self._listener, limit=LINE_LIMIT_BYTES)
        try:
            if self._order["coordinator"]:
                self._coordinator = await self._start("coordinator", self._order["coordinator"], signal.SIGTERM)
            await self._start_agent(self._order["agent"])
            while self._end_reason is None:
                await self._tick()
                await asyncio.sleep(_TICK_S)
        finally:
            await self._stop()
            await self._upstream.close(encode("ended", reason=self._end_reason or "an error, see daemon.log"))
            server.close()
            self._folder.secret_file.unlink(missing_ok=True)
            self._console.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The newest connection counts: an older one may be one that was lost without anybody noticing here."""
        if not _is_own_user(writer):
            writer.transport.abort()
            return
        self._heard_at = time.monotonic()
        self._upstream.use(writer)
        with contextlib.suppress(OSError, ValueError):
            async for line in reader:
                self._heard_at = time.monotonic()
                if (order := decode(line)) is not None:
                    await self._obey(order)
        self._upstream.drop(writer)

    def end(self, reason: str) -> None:
        self._end_reason = self._end_reason or reason

    async def _obey(self, order: dict[str, Any]) -> None:
        if order["op"] == "end":
            self.end(order.get("reason", "the launcher said so"))
        elif order["op"] == "agent" and self._end_reason is None and (self._agent is None or self._agent.has_ended):
            await self._start_agent(order["words"])

    async def _start_agent(self, words: list[str]) -> None:
        self._agent = await self._start("agent", words, signal.SIGKILL)

    async def _start(
        self, what: str, words: list[str], end_signal: signal.Signals, *descriptors: int
    ) -> ManagedProcess:
        process = ManagedProcess(what, words, self._variables(), self._on_line)
        await process.start(end_signal, descriptors)
        return process

    def _variables(self) -> dict[str, str]:
        variables = {**os.environ, SECRET_FILE_VARIABLE: str(self._folder.secret_file)}
        variables.pop(SECRET_VARIABLE, None)
        return variables

    def _write_secret(self) -> None:
        with open_private(self._folder.secret_file, "w") as file:
            file.write(self._secret)

    def _on_line(self, what: str, text: str) -> None:
        self._console.write(f"{text}\n".encode())
        self._console.flush()
        self._upstream.send_line(what, text)

    # --- what it does all the time -----------------------------------------------------------------------------------

    async def _tick(self) -> None:
        if time.monotonic() > self._heard_at + self._order["lease_s"]:
            self._end_reason = f"nothing was heard from the launcher for {self._order['lease_s']:g} s"
            return
        self._reap_orphans()
        self._news.look()
        if self._agent is not None:
            self._report_end(self._agent)
        if self._coordinator is not None and self._report_end(self._coordinator):
            await self._restart_coordinator()

    def _reap_orphans(self) -> None:
        """Children of an agent that died come to this process, which has to wait for them when they end."""
        own = {process.pid for process in (self._agent, self._coordinator) if process is not None}
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid in own:
                    return  # asyncio waits for it
                os.waitpid(ended.si_pid, os.WNOHANG)

    def _report_end(self, process: ManagedProcess) -> bool:
        """Once per process. Returns whether it ended."""
        code = process.code
        if code is None or process.was_reported:
            return False
        process.was_reported = True
        leading = process.what == "coordinator" and self._folder.is_led_by(process.pid)
        self._news.look()  # the last events come before the end
        again = process is self._coordinator and self._starts_again(code)
        self._upstream.send(encode("exit", what=process.what, code=code, leading=leading, again=again))
        return True

    def _starts_again(self, code: int) -> bool:
        return code < 0 and self._restarts < _RESTARTS

    async def _restart_coordinator(self) -> None:
        """One that a signal has ended takes the job over again, or stands by; else it said all that there is to say."""
        assert self._coordinator is not None and self._coordinator.code is not None
        if self._starts_again(self._coordinator.code):
            self._restarts += 1
            with handed_over(self._secret.encode()) as secret:
                words = [*self._order["coordinator_again"], "--again", f"--secret-from={secret}"]
                self._coordinator = await self._start("coordinator", words, signal.SIGTERM, secret)
            self._upstream.send(encode("coordinator_restarted"))

    async def _stop(self) -> None:
        """The coordinator first: one that leads tells all nodes that the job is over."""
        if self._coordinator is not None:
            await self._coordinator.end(signal.SIGTERM, _COORDINATOR_STOP_S)
        if self._agent is not None:
            await self._agent.end(signal.SIGINT, _AGENT_STOP_S)
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def _is_own_user(writer: asyncio.StreamWriter) -> bool:
    link = writer.get_extra_info("socket")
    _, user, _ = _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(user == os.getuid())


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # processes whose parent is gone stay below this one
    for sig in (signal.SIGINT, signal.SIGHUP):
        signal.signal(sig, signal.SIG_IGN)
    order = decode(sys.stdin.buffer.read())
    assert order is not None, "the order was cut off"
    os.chdir(order["folder"])
    listener = socket.socket(fileno=int(sys.argv[1]))
    asyncio.run(_run(order, listener))


async def _run(order: dict[str, Any], listener: socket.socket) -> None:
    daemon = Daemon(order, listener)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, daemon.end, "its daemon got SIGTERM")
    await daemon.run()


if __name__ == "__main__":
    main()
