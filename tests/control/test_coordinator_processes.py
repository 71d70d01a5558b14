"""What a launcher does about coordinator processes that end."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deadpool.config.job_config import JobConfig
from deadpool.control.launch import coordinator_processes
from deadpool.control.launch.coordinator_processes import CoordinatorProcesses
from deadpool.control.launch.run_dir import RunDir
from deadpool.protocol.identity import Address


class Process:
    """The twin of a coordinator's process; the first one leads as soon as it is started."""

    def __init__(self, number: int) -> None:
        self.pid = os.getpid() + number
        self.code: int | None = None
        self.runs_for_looks = 0  # so often it is still running, and then it has ended with the code

    def poll(self) -> int | None:
        self.runs_for_looks -= 1
        return self.code if self.runs_for_looks < 0 else None


class Launcher:
    def __init__(self, folder: Path, *, standbys: int) -> None:
        self.run_dir = RunDir.create(folder)
        self.started: list[tuple[list[str], Process]] = []
        self.secrets: list[bytes] = []  # that were handed over
        config = JobConfig(nodes=3, standby_coordinators=standbys).checked()
        self.coordinators = CoordinatorProcesses(config, self.run_dir, self.spawn)  # type: ignore[arg-type]
        self.coordinators.start()

    def spawn(self, command: list[str], end_signal: signal.Signals, pass_fds: tuple[int, ...] = ()) -> Process:
        process = Process(len(self.started))
        for word in command:
            if word.startswith("--secret-from="):
                self.secrets.append(os.read(int(word.partition("=")[2]), 100))
        if not self.started:
            self.becomes_leader(process)
        self.started.append((command, process))
        return process

    def becomes_leader(self, process: Process) -> None:
        self.run_dir.announce(Address(host="127.0.0.1", port=1000), tls="off", pid=process.pid)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[[int], Launcher]]:
    launched: list[Launcher] = []

    def launch(standbys: int) -> Launcher:
        launched.append(Launcher(tmp_path, standbys=standbys))
        return launched[-1]

    yield launch
    for launcher in launched:
        for _, process in launcher.started:
            process.code, process.runs_for_looks = process.code or 0, 0
        launcher.coordinators.stop()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_processes, "_DESERTED_S", 0.0)


def test_killed_and_started_again_at_the_same_place(launch: Callable[[int], Launcher]) -> None:
    launcher = launch(0)
    launcher.started[0][1].code = -signal.SIGKILL
    assert launcher.coordinators.poll(deserted=False) is None
    command, process = launcher.started[1]
    assert "--port=1000" in command
    launcher.becomes_leader(process)
    process.code = 0
    assert launcher.coordinators.poll(deserted=False) == 0


def test_what_a_standby_ends_with_is_not_the_job_s_code(launch: Callable[[int], Launcher]) -> None:
    launcher = launch(1)
    launcher.started[1][1].code = 3
    assert launcher.coordinators.poll(deserted=False) is None


@pytest.mark.parametrize(("codes", "expected"), [((-9, 0, 0), 0), ((-9, 0, 1), 1), ((-9, 1, 0), 1)])
def test_job_ends_under_one_that_could_not_write_that_it_leads(launch: Callable[[int], Launcher], codes, expected):
    """The first is killed, and started again as a standby; the second has taken over on a full disk."""
    launcher = launch(1)
    first, second = (process for _, process in launcher.started)
    first.code = codes[0]
    assert launcher.coordinators.poll(deserted=False) is None
    again = launcher.started[2][1]
    second.code = codes[1]
    assert launcher.coordinators.poll(deserted=False) is None
    again.code = codes[2]
    assert launcher.coordinators.poll(deserted=False) == expected


def test_several_are_at_an_end_when_no_node_is_left(launch: Callable[[int], Launcher], impatient: None) -> None:
    """Each of them wants to lead, and nobody will ever call."""
    launcher = launch(1)
    assert launcher.coordinators.poll(deserted=False) is None
    assert launcher.coordinators.poll(deserted=True) == 1


def test_one_that_is_alone_waits_for_nodes_to_be_added(launch: Callable[[int], Launcher], impatient: None) -> None:
    launcher = launch(0)
    assert [launcher.coordinators.poll(deserted=True) for _ in range(3)] == [None] * 3


def test_one_that_ends_while_it_is_looked_at_gives_the_job_its_own_code(launch: Callable[[int], Launcher]) -> None:
    launcher = launch(0)
    process = launcher.started[0][1]
    process.code, process.runs_for_looks = 0, 1
    codes = [launcher.coordinators.poll(deserted=False) for _ in range(2)]
    assert codes == [None, 0]


@pytest.mark.parametrize("text", ["", "{", '{"pid": "x"}', "[]"])
def test_damaged_announcement_says_nothing_about_who_leads(launch: Callable[[int], Launcher], text: str) -> None:
    launcher = launch(1)
    (launcher.run_dir.path / "job.json").write_text(text)
    second = launcher.started[1][1]
    second.code = 3
    assert launcher.coordinators.poll(deserted=False) is None
    launcher.becomes_leader(second)
    assert launcher.coordinators.poll(deserted=False) == 3


@pytest.mark.parametrize("failure", [errno.EIO, errno.ESTALE])
def test_disk_that_fails_says_nothing_about_who_leads(
    launch: Callable[[int], Launcher], failure: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = launch(1)
    launcher.started[1][1].code = 3
    launcher.becomes_leader(launcher.started[1][1])

    def fail(*_: object, **__: object) -> None:
        raise OSError(failure, os.strerror(failure))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", fail)
        patch.setattr(Path, "read_text", fail)
        assert launcher.coordinators.poll(deserted=False) is None
    assert launcher.coordinators.poll(deserted=False) == 3


def test_one_that_is_started_again_needs_nothing_of_the_folder(launch: Callable[[int], Launcher]) -> None:
    launcher = launch(0)
    secret = launcher.run_dir.secret_file.read_bytes()
    launcher.run_dir.path.rename(launcher.run_dir.path.with_name("away"))
    launcher.started[0][1].code = -signal.SIGKILL
    assert launcher.coordinators.poll(deserted=False) is None
    command, _ = launcher.started[1]
    assert "--again" in command and launcher.secrets == [secret]
    assert not any(secret.decode() in word for word in command)


def test_second_job_in_a_folder_has_a_log_of_its_own(tmp_path: Path, launch: Callable[[int], Launcher]) -> None:
    earlier = RunDir.create(tmp_path)
    earlier.events.write_text('{"what": "fault", "cause": "fault-1"}\n')
    launcher = launch(0)
    assert not launcher.run_dir.events.exists() and (tmp_path / "earlier-1" / "events.jsonl").exists()
