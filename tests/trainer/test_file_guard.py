"""What a script's preparation may do to files of the job, in a first process, a newcomer and a rehearsal."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from deadpool.config.environment import FIRST_START_VARIABLE
from deadpool.protocol.identity import Generation, Schedule, Version
from deadpool.protocol.messages import Recording, Rehearse, Seat
from deadpool.trainer import first_start
from deadpool.trainer.guards.file_guard import FileGuard
from deadpool.trainer.guards.guard import Rule
from deadpool.trainer.guards.kept_files import JobFolders

FOUNDING, LATER = Generation(1, 1), Generation(1, 2)
VERSION = Version(FOUNDING, 4)


def seat(generation: Generation = FOUNDING, resume: Version | None = None) -> Seat:
    return Seat(generation=generation, cause="start", rank=0, resume=resume, schedule=Schedule(every=1, left_out_of=0))


LOOP_BEGAN = time.time() + 3600.0
RECORDING = Recording(rank=0, start=FOUNDING, complete=True, book=b"-", loop_began=LOOP_BEGAN)
REHEARSE = Rehearse(generation=FOUNDING, trainer="n0.0", rank=0)


class Reports:
    """As Findings, without a session."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def report(self, rule: object, found: str, *, kind: str) -> None:
        assert found.endswith(".")
        assert (rule == Rule.FILES_FROM_LOOP) == (kind == "read")
        self.kinds.append(kind)


Prepare = Callable[[Seat | Rehearse], Reports]


@pytest.fixture
def begin(tmp_path, monkeypatch) -> Iterator[Prepare]:
    """Begins the preparation of a script in a folder that has a log, an empty file and checkpoints."""
    folder = tmp_path / "job"
    (folder / "checkpoints").mkdir(parents=True)
    for name, text in [("train.py", "pass"), ("log", "old\n"), ("empty", ""), ("checkpoints/1", "1")]:
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setenv(FIRST_START_VARIABLE, "")
    monkeypatch.setattr(first_start, "_was_asked", False)
    guards: list[FileGuard] = []

    def begin(role: Seat | Rehearse) -> Reports:
        reports = Reports()
        first_start.set_environment_for(role)
        session = SimpleNamespace(role=role, playing=role, findings=reports, rank=0, recordings={0: RECORDING})
        guards.append(FileGuard(session))  # type: ignore[arg-type]
        guards[-1].begin(["train.py"])
        reports.end = guards[-1].end  # type: ignore[attr-defined]
        reports.enter_dry_steps = guards[-1].enter_dry_steps  # type: ignore[attr-defined]
        return reports

    yield begin
    for guard in guards:
        guard.end()


DESTRUCTIVE: dict[str, Callable[[], object]] = {
    "remove": lambda: os.remove("log"),  # noqa: PTH107
    "unlink": lambda: Path("log").unlink(),
    "rmtree": lambda: shutil.rmtree("checkpoints"),
    "rename away": lambda: Path("log").rename("log.old"),
    "replace": lambda: (Path("new").write_text("new"), Path("new").replace("log")),
    "truncate": lambda: os.truncate("log", 0),
    "descriptor": lambda: os.close(os.open("log", os.O_WRONLY | os.O_TRUNC)),
}


@pytest.mark.parametrize("call", DESTRUCTIVE.values(), ids=DESTRUCTIVE)
def test_rehearsal_is_refused(begin, call):
    reports = begin(REHEARSE)
    with pytest.raises(PermissionError, match=r"if deadpool\.first_start:"):
        call()
    assert Path("log").read_text() == "old\n" and Path("checkpoints/1").exists()
    assert len(set(reports.kinds)) == 1


@pytest.mark.parametrize("call", DESTRUCTIVE.values(), ids=DESTRUCTIVE)
@pytest.mark.parametrize("role", [seat(resume=VERSION), seat(LATER)], ids=["newcomer", "from the first line again"])
def test_process_that_takes_a_rank_is_named_only(begin, call, role):
    reports = begin(role)
    call()
    assert len(set(reports.kinds)) == 1


def test_rehearsal_goes_on_where_the_script_ignores_errors(begin):
    reports = begin(REHEARSE)
    shutil.rmtree("checkpoints", ignore_errors=True)
    assert Path("checkpoints/1").exists() and set(reports.kinds) == {"remove"}


def test_first_process_is_told_of_removals_when_its_loop_begins(begin):
    reports = begin(seat())
    Path("log").write_text("new")
    shutil.rmtree("checkpoints")
    assert reports.kinds == []
    reports.end()
    assert set(reports.kinds) == {"remove"}


def test_first_process_that_asks_is_not_told(begin):
    reports = begin(seat())
    assert first_start.ask()
    shutil.rmtree("checkpoints")
    reports.end()
    assert reports.kinds == []


def test_what_a_rehearsal_has_made_it_may_remove(begin, tmp_path):
    reports = begin(REHEARSE)
    Path("own").mkdir()
    Path("own/file").write_text("a")
    Path("own/file").write_text("b")
    Path("own/file").rename("other")
    Path("other").unlink()
    shutil.rmtree("own")
    (tmp_path / "outside").write_text("a")
    (tmp_path / "outside").unlink()
    Path("empty").write_text("something")
    assert reports.kinds == [] and Path("empty").read_text() == "", "what the live rank is to fill"


@pytest.mark.parametrize("role", [REHEARSE, seat(LATER, VERSION)], ids=["rehearsal", "newcomer"])
def test_log_of_who_joins_is_appended_to_once_it_is_live(begin, role):
    reports = begin(role)
    log = Path("log").open("w", buffering=1)  # noqa: SIM115
    log.write("of the rehearsal\n")
    Path("train.py").write_text("config")
    assert (Path("log").read_text(), Path("train.py").read_text()) == ("old\n", "pass")
    reports.end()
    log.write("live\n")
    log.close()
    assert Path("log").read_text() == "old\nlive\n"
    assert Path("train.py").read_text() == "pass"
    assert reports.kinds == ["overwrite", "overwrite"]


def test_processes_that_a_rehearsal_forks_are_refused_too_and_no_longer_than_it_is(begin):
    reports = begin(REHEARSE)

    def removes(path: str) -> bool:
        child = os.fork()
        if child == 0:
            try:
                Path(path).unlink()
                os._exit(1)
            except PermissionError:
                os._exit(0)
        return bool(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    assert not removes("log")
    reports.end()
    assert removes("log")


@pytest.mark.parametrize("role", [seat(LATER), seat(resume=VERSION)], ids=["from the first line again", "earlier run"])
def test_who_begins_again_writes_its_files_again(begin, role):
    """What was half written when the attempt before failed must not stay."""
    begin(role)
    Path("log").write_text("new\n")
    assert Path("log").read_text() == "new\n"


def test_open_that_somebody_has_kept_works_after_the_files_were_handed_over(begin):
    reports = begin(REHEARSE)
    handler, kept = logging.FileHandler("late", mode="w", delay=True), open
    reports.end()
    handler.handle(logging.makeLogRecord({"msg": "first"}))
    handler.close()
    with kept("log", "w") as file:
        file.write("new\n")
    assert (Path("late").read_text(), Path("log").read_text()) == ("first\n", "new\n")


def test_process_that_a_newcomer_forks_writes_its_files_once_that_is_live(begin):
    reports = begin(seat(LATER, VERSION))
    (read, write), child = os.pipe(), os.fork()
    if child == 0:
        os.read(read, 1)
        Path("log").write_text("of the child\n")
        os._exit(0)
    reports.end()
    os.write(write, b"!")
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)
    assert Path("log").read_text() == "of the child\n"


def written_in_the_loop(path: str) -> None:
    """As by the live rank, after its loop has begun."""
    os.utime(path, (LOOP_BEGAN + 1.0, LOOP_BEGAN + 1.0))


def save(path: str) -> None:
    torch.save({"best": 1}, path)


READING: dict[str, Callable[[], object]] = {
    "open": lambda: Path("log").open().close(),
    "to change it": lambda: Path("log").open("r+").close(),
    "descriptor": lambda: os.close(os.open("log", os.O_RDONLY)),
    "torch.load": lambda: torch.load("best.pt"),
    "numpy.load": lambda: np.load("best.npy"),
    "link": lambda: Path("latest").read_text(),
}


@pytest.mark.parametrize("call", READING.values(), ids=READING)
@pytest.mark.parametrize("role", [REHEARSE, seat(LATER, VERSION)], ids=["rehearsal", "newcomer"])
def test_what_the_loop_has_written_is_named_where_it_is_read_before_a_loop(begin, call, role):
    save("best.pt")
    np.save("best.npy", np.zeros(2))
    Path("latest").symlink_to("log")
    reports = begin(role)
    call()
    assert reports.kinds == []
    for each in ("log", "best.pt", "best.npy"):
        written_in_the_loop(each)
    call()
    assert set(reports.kinds) == {"read"}


@pytest.mark.parametrize("role", [seat(), seat(LATER), seat(resume=VERSION)], ids=["first", "again", "earlier run"])
def test_who_does_not_join_reads_what_it_wants(begin, role):
    reports = begin(role)
    written_in_the_loop("log")
    Path("log").read_text()
    assert reports.kinds == []


def test_what_is_not_read_before_the_loop(begin, tmp_path):
    """Logs that are appended to, files of its own, those that are nobody's, and what a dry step reads."""
    (tmp_path / "outside").write_text("a")
    reports = begin(REHEARSE)
    Path("own").write_text("a")
    for each in ("log", "own", "../outside"):
        written_in_the_loop(each)
    for mode in ("a", "a+"):
        Path("log").open(mode).close()
    for each in ("own", "../outside"):
        Path(each).read_text()
    reports.enter_dry_steps()
    Path("log").read_text()
    assert reports.kinds == []


def test_folders_of_the_job(tmp_path, monkeypatch):
    for folder in ("here", "scripts", "data/__pycache__", "other"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "scripts" / "train.py").touch()
    monkeypatch.chdir(tmp_path / "here")
    folders = JobFolders([str(tmp_path / "scripts" / "train.py"), f"--data={tmp_path}/data", "--lr", "1"])
    held = [
        path
        for path in ("here/a", "scripts/b", "data/c/d", "data/__pycache__/e", "other/f", "g")
        if folders.hold(f"{tmp_path}/{path}")
    ]
    assert held == ["here/a", "scripts/b", "data/c/d"]
    assert not folders.hold("/dev/null")
    assert not folders.hold(f"{tmp_path}/data/rows.lock")


@pytest.mark.parametrize(
    ("role", "restarts", "first"),
    [
        (seat(), "0", True),
        (seat(), "1", False),
        (seat(resume=VERSION), "0", False),
        (seat(LATER), "0", False),
        (REHEARSE, "0", False),
    ],
    ids=["first", "requeued", "newcomer", "from the first line again", "rehearsal"],
)
def test_first_start(monkeypatch, role, restarts, first):
    monkeypatch.setenv(FIRST_START_VARIABLE, "")
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    first_start.set_environment_for(role)
    assert first_start.is_first() is first


def test_first_start_without_deadpool(monkeypatch):
    monkeypatch.delenv(FIRST_START_VARIABLE, raising=False)
    assert first_start.is_first()


@pytest.mark.parametrize("role", [REHEARSE, seat(LATER, VERSION)], ids=["rehearsal", "newcomer"])
def test_log_that_was_empty_at_first_keeps_the_lines_that_the_live_rank_writes(begin, role):
    """A spare rehearses while the live rank does its first step: the log is there, and nothing is in it yet."""
    reports = begin(role)
    log = open("empty", "w", buffering=1)  # noqa: SIM115
    log.write("a dry step\n")
    live = os.open("empty", os.O_WRONLY)  # by the live rank
    os.write(live, b"step 0\nstep 1\n")
    os.close(live)
    reports.end()
    log.write("step 2\n")
    log.close()
    assert Path("empty").read_text() == "step 0\nstep 1\nstep 2\n"
    assert reports.kinds == []
