"""A job on hosts that are reached by ssh: checks them, starts coordinators and agents, and ends everything with itself.

Coordinators run on the hosts, not here: this machine may be a laptop that no host can reach. The job is this process's:
when it is interrupted or dies, hosts end their part at once. Only its connections may be lost for a while (the lease).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deadpool.clusters.commands import agent_words, coordinator_words
from deadpool.clusters.ssh.connection import ConnectionFailed, HostConnection, HostLink, HostOrders, SshClient
from deadpool.clusters.ssh.hosts import Checked, Host, findings, table
from deadpool.clusters.ssh.outcome import HostsOutcome, Reporter
from deadpool.config.job_config import JobConfig
from deadpool.control.console import print_line
from deadpool.control.launch.run_dir import RunDir, take_folder
from deadpool.errors import ConfigError
from deadpool.host.private_files import ProcessLock

_TICK_S = 0.1
_BEATS_PER_LEASE = 10
_MOST_RESTARTS = 20
_RESTART_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SshOptions:
    """What is special about a job on hosts. `folder` is where the script runs, on every host."""

    client: SshClient
    folder: Path
    fan_out: int
    lease_s: float
    restart: bool
    check_only: bool = False


@dataclass(slots=True)
class SshJob:
    config: JobConfig
    hosts: Sequence[Host]
    options: SshOptions
    run_dir: RunDir  # on this machine
    script: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    preload: Sequence[str] = ()
    _connections: dict[str, HostConnection] = field(default_factory=dict)
    _links: dict[str, HostLink] = field(default_factory=dict)
    _outcome: HostsOutcome | None = None
    _restarts: dict[str, int] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _reporter: Reporter = field(init=False)

    def __post_init__(self) -> None:
        self._reporter = Reporter(self.run_dir)

    async def run(self) -> int:
        """Returns the job's exit code. When it is cancelled, it ends everything first."""
        lock: ProcessLock | None = None
        try:
            checked = await self._check()
            if self.options.check_only:
                return 0
            lock = take_folder(self.run_dir)
            self._reporter.begin()
            self._start(checked)
            return await self._wait()
        finally:
            await self._end()
            if lock is not None:
                lock.close()

    # --- before the job ----------------------------------------------------------------------------------------------

    async def _check(self) -> list[Checked]:
        gate = asyncio.Semaphore(self.options.fan_out)
        checked = await asyncio.gather(*(self._ask(host, gate) for host in self.hosts))
        self._reporter.show(table(checked, self._roles()))
        found = findings(checked)
        for finding in found:
            print_line(f"[deadpool] {'refused' if finding.fatal else 'note'}: node {finding.node}: {finding.text}")
        if any(finding.fatal for finding in found):
            raise ConfigError("the hosts cannot run this job: see above; nothing was started")
        return checked

    async def _ask(self, host: Host, gate: asyncio.Semaphore) -> Checked:
        """Asks a host for its facts. No more than so many hosts as the gate lets through are called at once: a name
        server or a gateway may refuse more.
        """
        words = self.script
        question = {
            "folder": str(self.options.folder),
            "script": words[0] if words[0] != "-m" else None,
            "interface": "" if host.address else self.config.interface,
        }
        async with gate:
            try:
                connection = await HostConnection.open(self.options.client, host)
                self._connections[host.name] = connection
                facts = await connection.ask("ask", "facts", **question)
                return Checked(host=host, facts={**facts, **await connection.ask("clock", "clock")})
            except ConnectionFailed as failure:
                return Checked(host=host, problem=f"ssh {host.target}: {failure}")

    def _roles(self) -> dict[str, str]:
        seats = self._coordinator_hosts()
        roles = {}
        for index, host in enumerate(self.hosts):
            role = "trains" if index < self.config.nodes else "spare"
            roles[host.name] = f"{role}, coordinator" if host in seats else role
        return roles

    def _coordinator_hosts(self) -> list[Host]:
        """Chooses hosts on different racks where there are some: first the first host, then one of a rack that has none
        yet.
        """
        chosen: list[Host] = []
        while len(chosen) < min(1 + self.config.standby_coordinators, len(self.hosts)):
            left = [host for host in self.hosts if host not in chosen]
            racks = {host.rack for host in chosen if host.rack is not None}
            chosen.append(next((host for host in left if host.rack not in racks), left[0]))
        return chosen

    # --- the job -----------------------------------------------------------------------------------------------------

    def _start(self, checked: Sequence[Checked]) -> None:
        secret = self.run_dir.secret_file.read_text()
        run = secrets.token_hex(16)
        addresses = {each.host.name: each.host.address or (each.facts or {})["address"] for each in checked}
        ports = {each.host.name: (each.facts or {})["port"] for each in checked}
        seats = self._coordinator_hosts()
        places = [f"{addresses[host.name]}:{ports[host.name]}" for host in seats]
        self._outcome = HostsOutcome.of([host.name for host in seats], [host.name for host in self.hosts])
        for index, host in enumerate(self.hosts):
            folder = self._folder_of(host)
            coordinator = [
                self._coordinator(
                    addresses[host.name], ports[host.name], places, folder, faults=host == seats[0] and first
                )
                if host in seats
                else []
                for first in (True, False)
            ]
            order = {
                "run": run,
                "node": host.name,
                "folder": str(self.options.folder),
                "node_folder": str(folder),
                "lease_s": self.options.lease_s,
                "secret": secret,
                "environment": self.environment,
                "agent": self._agent(host, addresses[host.name], places, spare=index >= self.config.nodes),
                "coordinator": coordinator[0],
                "coordinator_again": coordinator[1],
            }
            again = self._agent(host, addresses[host.name], places, spare=True)
            self._tend(host, HostOrders(start=order, agent_again=again))

    def _folder_of(self, host: Host) -> Path:
        """Returns a folder of its own for each node: the run folder may be on a file system that all of them share."""
        return self.run_dir.path / "nodes" / host.name

    def _coordinator(self, address: str, port: int, places: Sequence[str], folder: Path, *, faults: bool) -> list[str]:
        return coordinator_words(self.config, host=address, port=port, places=places, run_dir=folder, faults=faults)

    def _agent(self, host: Host, address: str, places: Sequence[str], *, spare: bool) -> list[str]:
        rack = host.rack or self.config.racks().get(host.name)
        return agent_words(
            self.config,
            self.script,
            name=host.name,
            host=address,
            places=places,
            logs=self._folder_of(host) / "logs",
            spare=spare,
            rack=rack,
            preload=self.preload,
        )

    def _tend(self, host: Host, orders: HostOrders) -> None:
        options = self.options
        link = HostLink(
            host, options.client, orders, lease_s=options.lease_s, restart=options.restart, tell=self._on_message
        )
        self._links[host.name] = link
        self._spawn(link.tend(self._connections.pop(host.name)))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)

    async def _wait(self) -> int:
        assert self._outcome is not None
        beat_s = min(2.0, self.options.lease_s / _BEATS_PER_LEASE)
        next_beat = 0.0
        loop = asyncio.get_running_loop()
        while self._outcome.code is None:
            if loop.time() >= next_beat:
                next_beat = loop.time() + beat_s
                for link in self._links.values():
                    link.send("beat")
            self._raise_errors()
            self._outcome.tick()
            await asyncio.sleep(_TICK_S)
        if self._outcome.reason:
            print_line(f"[deadpool] {self._outcome.reason}")
        return self._outcome.code

    def _raise_errors(self) -> None:
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.discard(task)
            try:
                task.result()
            except ConnectionFailed as failure:
                raise ConfigError(f"a host was lost while the job was being started: {failure}") from failure

    def _on_message(self, link: HostLink, message: dict[str, Any]) -> None:
        assert self._outcome is not None
        name, outcome = link.host.name, self._outcome
        self._reporter.on_message(name, message)
        match message:
            case {"op": "exit", "what": "coordinator", "again": True}:
                pass  # the job is not over: it is started again there
            case {"op": "exit", "what": "coordinator", "code": code, "leading": leading}:
                outcome.on_coordinator_ended(name, code, leading=leading)
            case {"op": "coordinator_restarted"}:
                outcome.on_coordinator_started(name)
            case {"op": "exit", "what": "agent", "code": code}:
                outcome.on_agent_ended(name)
                if code != 0 and self.options.restart:
                    self._restart_agent(link)
            case {"op": "started_again"}:
                outcome.on_agent_started(name)
                if link.host in self._coordinator_hosts():
                    outcome.on_coordinator_started(name)
            case {"op": "given_up"} | {"op": "ended"}:
                outcome.on_host_gone(name)

    def _restart_agent(self, link: HostLink) -> None:
        assert self._outcome is not None
        count = self._restarts[link.host.name] = self._restarts.get(link.host.name, 0) + 1
        if count > _MOST_RESTARTS:
            print_line(
                f"[deadpool] the agent of node {link.host.name} has ended {count} times: it is not started again"
            )
            return
        self._outcome.on_agent_started(link.host.name)
        asyncio.get_running_loop().call_later(_RESTART_PAUSE_S * min(count, 10), link.start_agent_again)

    # --- the end -----------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        """Hosts end their part all at once. A host that is not connected does so when its lease is over."""
        for connection in self._connections.values():
            await connection.close()
        done = await asyncio.gather(*(link.end("the job is over") for link in self._links.values()))
        left = [link.host.name for link, ended in zip(self._links.values(), done, strict=True) if not ended]
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError, ConnectionFailed):
                await task
        for link in self._links.values():
            await link.close()
        if left:
            print_line(
                f"[deadpool] {', '.join(left)} cannot be reached: what runs there ends by itself within "
                f"{self.options.lease_s:g} s"
            )
        self._reporter.close()
