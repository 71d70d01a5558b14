"""The pool's process and what it keeps on disk.

`PoolServer`: the pool's process: an asyncio shell around its core. Machines connect to it, and so do commands.

`read_jobs`, `write_jobs` and `machine_identity`: what a pool and its machines keep on disk, so that one that is
started again knows what the last one knew.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from pathlib import Path
from typing import Any, assert_never

import msgspec

from deadpool.control.console import print_line
from deadpool.control.coordinator.progress import console_line
from deadpool.control.launch.run_dir import RunDir
from deadpool.errors import ConfigError
from deadpool.events.event import Event
from deadpool.events.log import EventLog
from deadpool.host.private_files import open_private
from deadpool.protocol.effects import Emit
from deadpool.protocol.features.leases.pool.pool import (
    FromHost,
    HostLost,
    JobAdded,
    JobRemoved,
    MachinePool,
    PoolInput,
    ToHost,
    WarnHost,
)
from deadpool.protocol.identity import Address
from deadpool.protocol.messages import Answer, Ask, JoinRefused, MachineState, PoolJob
from deadpool.wire.control_link import ServedLink
from deadpool.wire.credentials import Credentials
from deadpool.wire.deadline import notice_silence
from deadpool.wire.listener import AuthenticatedListener, RefusedPeer


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


_JOBS_FILE = "jobs.json"


class PoolServer:
    def __init__(self, folder: RunDir, credentials: Credentials, log: EventLog) -> None:
        self._jobs_file, self._log = folder.path / _JOBS_FILE, log
        self._core = MachinePool(read_jobs(self._jobs_file))
        self._links: dict[str, ServedLink] = {}
        self._listener = AuthenticatedListener(credentials, "control", self._serve, self._on_refused)

    async def start(self, host: str, port: int) -> Address:
        return await self._listener.start(host, port)

    async def close(self) -> None:
        await self._listener.close()

    # --- machines and commands ---------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        notice_silence(writer)
        link = ServedLink(reader, writer)
        await link.listen(lambda message: self._on_message(link, message))
        for host in [name for name, known in self._links.items() if known is link]:
            del self._links[host]
            self._feed(HostLost(host=host, reason=link.lost_reason))

    def _on_message(self, link: ServedLink, message: Any) -> None:
        match message:
            case MachineState():
                if (reason := self._core.refusal(message)) is not None:
                    link.send(JoinRefused(reason=reason))
                else:
                    self._use(message.host, link)
                self._feed(FromHost(state=message))
            case Ask():
                link.send(self._answer(message))
            case _:
                pass  # nothing else is said to a pool

    def _use(self, host: str, link: ServedLink) -> None:
        """Takes this link as the machine's. The machine may have come back before the end of its last link was seen."""
        before = self._links.get(host)
        if before is not link:
            self._links[host] = link
            self._feed(HostLost(host=host, reason="it connected again"))
        if before is not None and before is not link:
            before.abort()

    def _feed(self, input: PoolInput) -> None:
        for effect in self._core.step(input, now=time.monotonic()):
            match effect:
                case ToHost(host=host, message=told) | WarnHost(host=host, message=told):
                    if host in self._links:
                        self._links[host].send(told)
                case Emit(event=event):
                    self._record(event)
                case _ as never:
                    assert_never(never)

    def _record(self, event: Event) -> None:
        record = event.record(t=time.time())
        self._log.write(record)
        if (line := console_line(record)) is not None:
            print_line(f"[deadpool] {line}")

    def _on_refused(self, refused: RefusedPeer, count: int) -> None:
        self._record(Event(what="connection_refused", detail={"reason": refused.sentence, "count": count}))

    # --- commands ----------------------------------------------------------------------------------------------------

    def _answer(self, ask: Ask) -> Answer:
        match ask.what:
            case "pool_status":
                return Answer(body=self._status())
            case "add_job":
                return self._add(ask.arguments)
            case "remove_job":
                return self._remove(str(ask.arguments.get("name")))
        return Answer(body={}, error="this is the folder of a pool, and no job: give the run folder of a job")

    def _add(self, arguments: dict[str, Any]) -> Answer:
        try:
            job = msgspec.convert(arguments["job"], PoolJob)
        except (KeyError, msgspec.ValidationError) as error:
            return Answer(body={}, error=f"the job cannot be added: {error}")
        self._feed(JobAdded(job=job))
        write_jobs(self._jobs_file, tuple(self._core.jobs.values()))
        return Answer(body=self._status())

    def _remove(self, name: str) -> Answer:
        if name not in self._core.jobs:
            known = ", ".join(sorted(self._core.jobs)) or "none"
            return Answer(body={}, error=f"the pool serves no job {name!r}: known are {known}")
        self._feed(JobRemoved(name=name))
        write_jobs(self._jobs_file, tuple(self._core.jobs.values()))
        return Answer(body=self._status())

    def _status(self) -> dict[str, Any]:
        hosts = [msgspec.structs.asdict(host) for host in self._core.hosts.values()]
        jobs = [
            {"name": job.name, "priority": job.priority, "coordinators": job.coordinators, **self._figures(job.name)}
            for job in self._core.jobs.values()
        ]
        return {
            "hosts": [{**host, **{key: list(host[key]) for key in ("parked", "ready")}} for host in hosts],
            "jobs": jobs,
            "refused": [{"host": host, "reason": why} for host, why in self._core.refused(time.monotonic())],
        }

    def _figures(self, job: str) -> dict[str, list[str]]:
        hosts = self._core.hosts.values()
        return {
            "leased": [host.host for host in hosts if host.leased_to == job],
            "ready": [host.host for host in hosts if not host.leased_to and job in host.ready],
        }
