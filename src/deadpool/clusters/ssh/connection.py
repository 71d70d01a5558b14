"""Hosts of a running job, seen from the launcher.

A `HostLink` is one host: its connection, also across the loss of it, and its processes. A connection is the system's
ssh client, with a session at the other end, as lines to and from it. The client is not killed with this process: it
passes the end of its standard input on, by which the host learns that the launcher is gone. It ends by itself when its
session does, or when the host does not answer any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deadpool.clusters.ssh.hosts import Host
from deadpool.clusters.ssh.upstream import LINE_LIMIT_BYTES, decode_marked, encode

_PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0)
_END_S = 20.0
"""More than a daemon takes to end what does not go by itself."""

_CONNECT_S = 10
_ALIVE_S, _ALIVE_COUNT = 5, 3
ANSWER_S = 60.0
"""The time from the call of ssh to the first answer: a cold shared file system may take long to start a python."""
_LAST_WORDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOrders:
    """What a host is told. `start` has all fields of that message; `agent_again` starts an agent as a spare."""

    start: dict[str, Any] = field(repr=False)  # the job's secret is in it
    agent_again: list[str]


class HostLink:
    """`tell` gets every message of the host, and what happens to its connection as messages of this process."""

    def __init__(
        self,
        host: Host,
        client: SshClient,
        orders: HostOrders,
        *,
        lease_s: float,
        restart: bool,
        tell: Callable[[HostLink, dict[str, Any]], None],
    ) -> None:
        self.host, self._client, self._orders = host, client, orders
        self._lease_s, self._restart, self._tell = lease_s, restart, tell
        self._connection: HostConnection | None = None
        self._is_ending = False
        self.has_ended = False  # its daemon said so, or is gone
        self.heard_at = time.monotonic()

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    async def tend(self, connection: HostConnection) -> None:
        """Starts the host's processes and returns when they have ended, or the host is given up."""
        await self._start(connection, self._orders.start)
        while self._connection is not None:
            await self._listen(self._connection)
            await self._forget(why=not self.has_ended)
            if not self.has_ended and not self._is_ending:
                await self._reconnect()

    def send(self, op: str, **fields: Any) -> None:
        if self._connection is not None:
            self._connection.send(op, **fields)

    def start_agent_again(self) -> None:
        self.send("agent", words=self._orders.agent_again)

    async def end(self, reason: str) -> bool:
        """Returns whether everything has ended there."""
        self._is_ending = True
        self.send("end", reason=reason)
        deadline = time.monotonic() + _END_S
        while self._connection is not None and not self.has_ended and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        return self.has_ended

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _start(self, connection: HostConnection, order: dict[str, Any]) -> None:
        await connection.ask("start", "attached", **order)
        self._connection, self.has_ended = connection, False

    async def _listen(self, connection: HostConnection) -> None:
        async for message in connection.messages():
            self.heard_at = time.monotonic()
            self.has_ended = self.has_ended or message["op"] == "ended"
            self._tell(self, message)

    async def _forget(self, *, why: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            reason = await connection.why_it_ended() if why and not self._is_ending else ""
            await connection.close()
            if reason:
                self._tell(self, {"op": "connection_lost", "reason": reason})

    async def _reconnect(self) -> None:
        """Tries again until the lease of the daemon is over, which then has ended. To start it again, it tries as long
        as the job runs.
        """
        attempt = 0
        lost_at = time.monotonic()
        while not self._is_ending and (self._restart or time.monotonic() < lost_at + self._lease_s):
            await asyncio.sleep(_PAUSES_S[min(attempt, len(_PAUSES_S) - 1)])
            attempt += 1
            if self._is_ending or await self._try_again():
                return
        if not self._is_ending:
            self.has_ended = True
            self._tell(self, {"op": "given_up", "reason": f"it could not be reached for {self._lease_s:g} s"})

    async def _try_again(self) -> bool:
        """Returns whether there is nothing more to try."""
        with contextlib.suppress(ConnectionFailed):
            connection = await HostConnection.open(self._client, self.host)
            try:
                await self._find_daemon(connection)
                return True
            finally:
                if self._connection is not connection:
                    await connection.close()
        return False

    async def _find_daemon(self, connection: HostConnection) -> None:
        run = {name: self._orders.start[name] for name in ("run", "node")}
        answer = await connection.ask("attach", "attached", "absent", **run)
        if answer["op"] == "attached":
            self._connection = connection
            self._tell(self, {"op": "connected_again"})
        elif self._restart:
            again = {"agent": self._orders.agent_again, "coordinator": self._orders.start["coordinator_again"]}
            await self._start(connection, {**self._orders.start, **again})
            self._tell(self, {"op": "started_again"})
        else:
            self.has_ended = True
            reason = "the machine was started anew, or the job's daemon there has ended"
            self._tell(self, {"op": "given_up", "reason": reason})


@dataclass(frozen=True, slots=True, kw_only=True)
class SshClient:
    """How ssh is called. `options` are -o options, `variables` what the remote python needs to find its packages."""

    config: str = ""
    options: Sequence[str] = ()
    python: str
    variables: Mapping[str, str] = field(default_factory=dict)

    def command(self, host: Host) -> list[str]:
        own = [
            "BatchMode=yes",  # nobody is there to type a password
            f"ConnectTimeout={_CONNECT_S}",
            f"ServerAliveInterval={_ALIVE_S}",
            f"ServerAliveCountMax={_ALIVE_COUNT}",
            "ControlPath=none",  # a shared connection would end with its first user
            "ClearAllForwardings=yes",
            "ForwardAgent=no",
            "ForwardX11=no",
            "RequestTTY=no",
            "LogLevel=ERROR",
        ]
        words = ["ssh", *(["-F", self.config] if self.config else [])]
        words += [word for option in (*self.options, *own) for word in ("-o", option)]
        variables = [f"{name}={value}" for name, value in self.variables.items()]
        python = [host.python or self.python, "-u", "-m", "deadpool.clusters.ssh.session"]
        return [*words, "--", host.target, "exec " + shlex.join(["env", *variables, *python])]


class ConnectionFailed(Exception):
    """A connection that failed, with a sentence for the user."""


class HostConnection:
    def __init__(self, host: Host, process: asyncio.subprocess.Process) -> None:
        self._host, self._process = host, process
        self._last_words: list[str] = []
        self._listening = asyncio.get_running_loop().create_task(self._listen_to_errors())

    @classmethod
    async def open(cls, client: SshClient, host: Host) -> HostConnection:
        """The interrupts of a terminal go to this process only, so that it can end the job before the connections."""
        try:
            process = await asyncio.create_subprocess_exec(
                *client.command(host),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                limit=LINE_LIMIT_BYTES,
            )
        except FileNotFoundError:
            raise ConnectionFailed("there is no ssh on this machine: install OpenSSH's client") from None
        return cls(host, process)

    def send(self, op: str, **fields: Any) -> None:
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(encode(op, **fields))

    async def ask(self, op: str, *answers: str, **fields: Any) -> dict[str, Any]:
        """Sends, and waits for one of the answers. With "round_trip_s" in it. Raises ConnectionFailed."""
        began = time.time()
        self.send(op, **fields)
        try:
            async with asyncio.timeout(ANSWER_S):
                async for message in self.messages():
                    if message["op"] in answers:
                        return {**message, "asked_at": began, "answered_at": time.time()}
        except TimeoutError:
            raise ConnectionFailed(f"no answer within {ANSWER_S:g} s") from None
        raise ConnectionFailed(await self.why_it_ended())

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """Ends with the connection."""
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:
                continue  # longer than any line of ours
            if not line:
                return
            if (message := decode_marked(line)) is not None:
                yield message

    async def why_it_ended(self) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await self._listening
                await self._process.wait()
        return "; ".join(self._last_words) or f"ssh ended with code {self._process.returncode}"

    async def wait(self, patience_s: float) -> bool:
        """Waits until the session at the other end has ended, and returns whether it did."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                async for _ in self.messages():
                    pass
                await self._process.wait()
                return True
        return False

    async def close(self) -> None:
        """Ends the client, not what was started at the other end."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()
        self._listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._listening

    async def _listen_to_errors(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self._last_words = [*self._last_words, line.decode(errors="replace").strip()][-_LAST_WORDS:]
