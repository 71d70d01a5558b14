"""The processes of a pool and of its machines, with what can go wrong around them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until_async

from deadpool.clusters.pool import host_process as upstream_module
from deadpool.clusters.pool.host_process import HostProcess, PoolUpstream
from deadpool.clusters.pool.server import PoolServer, machine_identity, read_jobs, write_jobs
from deadpool.control.coordinator.announcement import pool_folder
from deadpool.control.launch.folder_lock import lock_folder
from deadpool.control.launch.run_dir import RunDir
from deadpool.errors import ConfigError
from deadpool.events.event import read_events
from deadpool.events.log import EventLog
from deadpool.protocol.features.leases.pool.host import StopAgent
from deadpool.protocol.identity import Address
from deadpool.protocol.messages import Assignment, PoolJob
from deadpool.wire.credentials import Credentials

Find = Callable[[], tuple[Address, Credentials]]


@contextlib.asynccontextmanager
async def machine(folder: Path, find: Find, name: str = "s0") -> AsyncIterator[HostProcess]:
    folder.mkdir(exist_ok=True)
    log = EventLog(folder / "events.jsonl")
    log.start()
    host = HostProcess(name, folder, PoolUpstream(find), memory_bytes=10, command="", log=log)
    running = asyncio.create_task(host.run())
    try:
        yield host
        assert not running.done(), running.exception()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        log.close()


@contextlib.asynccontextmanager
async def pool(folder: Path) -> AsyncIterator[tuple[PoolServer, Find]]:
    run_dir = RunDir.create(folder)
    run_dir.make_secret()
    log = EventLog(run_dir.events)
    log.start()
    server = PoolServer(run_dir, run_dir.credentials(serving=True, tls="off"), log)
    address = await server.start("127.0.0.1", 0)
    run_dir.announce(address, tls="off")
    try:
        yield server, lambda: (address, run_dir.credentials())
    finally:
        await server.close()
        log.close()


def job(name: str, folder: Path, coordinators: str = "127.0.0.1:9") -> PoolJob:
    script, secret = ("x.py",), str(folder / "secret")
    return PoolJob(name=name, coordinators=coordinators, secret_file=secret, script=script, folder=str(folder))


@contextlib.asynccontextmanager
async def silent_listener(came: list[str]) -> AsyncIterator[str]:
    """Notes who connects, and answers nobody."""

    async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(str(writer.get_extra_info("peername")))
        writer.close()

    server = await asyncio.start_server(note, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"


def nowhere() -> tuple[Address, Credentials]:
    """As of a folder on a file system that does not answer for a moment."""
    raise ConfigError("the folder cannot be read")


def told(folder: Path, what: str) -> list[dict[str, Any]]:
    return [record for record in read_events(folder / "events.jsonl") if record["what"] == what]


def test_a_job_whose_folder_is_missing_takes_the_machine_from_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also after a start: what was written to disk before the attempt is read again.

    That the other job is served is seen where its agent comes to: at its coordinator, however long that agent lives.
    """
    (tmp_path / "x.py").write_text("pass\n")
    (tmp_path / "secret").write_text("s" * 32)
    (tmp_path / "secret").chmod(0o600)
    came = []

    def of_a() -> list[dict[str, Any]]:
        return [each for each in told(tmp_path, "pool_agent_ended") if each["job"] == "a"]

    async def play() -> None:
        async with silent_listener(came) as address:
            write_jobs(tmp_path / "jobs.json", (job("a", tmp_path / "missing"), job("b", tmp_path, address)))
            async with machine(tmp_path, nowhere):
                await wait_until_async(lambda: len(of_a()) >= 2, "a second attempt of a")
                await wait_until_async(lambda: came, "the agent of b at its coordinator")

    asyncio.run(play())
    ended = of_a()
    assert [(each["code"], each["again_in_s"]) for each in ended[:2]] == [(127, 0.5), (127, 1.0)]
    assert str(tmp_path / "missing") in ended[0]["reason"]
    assert capsys.readouterr().out.count("no agent of job a can be started here") == 1


def test_an_agent_that_could_not_be_started_can_be_told_to_stop(tmp_path: Path) -> None:
    async def play() -> None:
        async with machine(tmp_path, nowhere) as host:
            await wait_until_async(lambda: host._told, "its first state")
            host._perform(StopAgent(job="a"))

    asyncio.run(play())


def test_a_folder_that_cannot_be_read_for_a_moment_ends_no_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_module, "_PAUSE_S", 0.01)

    async def play() -> None:
        async with pool(tmp_path / "pool") as (server, find):
            attempts: list[int] = []

            def find_later() -> tuple[Address, Credentials]:
                attempts.append(1)
                return nowhere() if len(attempts) < 4 else find()

            async with machine(tmp_path / "s0", find_later):
                await wait_until_async(lambda: server._core.hosts, "the machine")

    asyncio.run(play())
    assert capsys.readouterr().out.count("no pool: the folder cannot be read") == 1


def test_jobs_that_cannot_be_kept_on_disk_are_served(tmp_path: Path) -> None:
    (tmp_path / "s0" / "jobs.json" / "in_the_way").mkdir(parents=True)

    async def play() -> None:
        log = EventLog(tmp_path / "events.jsonl")
        host = HostProcess("s0", tmp_path / "s0", PoolUpstream(nowhere), memory_bytes=1, command="", log=log)
        host._on_assignment(Assignment(jobs=(job("a", tmp_path / "missing"),)))
        assert host._core.state.parked == ("a",)
        await host._close()

    asyncio.run(play())


# --- two of one name --------------------------------------------------------------------------------------------------


def test_a_second_machine_of_one_name_is_refused_until_the_first_has_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_module, "_REFUSED_PAUSE_S", 0.02)

    attempts, printed = [], []

    def heard() -> str:
        printed.append(capsys.readouterr().out)
        return "".join(printed)

    async def play() -> None:
        async with pool(tmp_path / "pool") as (server, find):

            def find_again() -> tuple[Address, Credentials]:
                attempts.append(1)
                return find()

            async with machine(tmp_path / "one", find):
                await wait_until_async(lambda: server._links, "the first machine")
                link = server._links["s0"]
                async with machine(tmp_path / "two", find_again):
                    await wait_until_async(lambda: len(attempts) > 3, "attempts of the second machine")
                    await wait_until_async(lambda: "the pool says" in heard(), "the warning of the first machine")
                    assert server._links == {"s0": link}
                    assert [each["host"] for each in server._status()["refused"]] == ["s0"]
            async with machine(tmp_path / "two", find):
                await wait_until_async(
                    lambda: str(tmp_path / "two") in str(server._core.hosts.get("s0")), "the second machine"
                )
                assert server._status()["refused"] == []

    asyncio.run(play())
    output = heard()
    assert output.count("no pool: ") == output.count("the pool says: ") == 1
    assert f"{tmp_path / 'one'} (" in output and "give one of them another --name" in output
    assert len(told(tmp_path / "pool", "pool_host_refused")) == 1


def test_a_machine_that_is_started_again_comes_back_before_its_old_link_has_ended(tmp_path: Path) -> None:
    async def play() -> None:
        async with pool(tmp_path / "pool") as (server, find), machine(tmp_path / "one", find):
            await wait_until_async(lambda: server._links, "the machine")
            link = server._links["s0"]
            async with machine(tmp_path / "one", find):
                await wait_until_async(lambda: server._links.get("s0") not in (None, link), "the machine again")

    asyncio.run(play())


def test_a_folder_has_one_process_and_a_machine_one_identity(tmp_path: Path) -> None:
    lock = lock_folder(tmp_path, "folder")
    with pytest.raises(ConfigError, match=r"folder='.*' cannot be used: process \d+ of .* uses it"):
        lock_folder(tmp_path, "folder")
    lock.close()
    lock_folder(tmp_path, "folder").close()
    (tmp_path / "other").mkdir()
    assert machine_identity(tmp_path) == machine_identity(tmp_path) != machine_identity(tmp_path / "other")


def test_what_is_no_pool_is_called_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no pool in .*: give --pool, or start one with deadpool pool serve"):
        pool_folder(tmp_path)
    assert read_jobs(tmp_path / "jobs.json") == ()
