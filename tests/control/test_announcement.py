"""A coordinator that takes over while the disk of its run folder does not answer leads all the same."""

from __future__ import annotations

import asyncio
import shutil
import threading

import pytest
from waiting import wait_until_async

from deadpool.control.coordinator import announcement
from deadpool.control.coordinator.announcement import Announcement
from deadpool.control.launch.run_dir import RunDir
from deadpool.protocol.identity import Address

NAME = "deadpool-announcement"
HERE = Address(host="here", port=1)


class HeldUp(RunDir):
    """Its disk takes nothing until `answers` is set."""

    answers = threading.Event()

    def announce(self, *arguments, **facts):
        self.answers.wait()
        super().announce(*arguments, **facts)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(announcement, "_RETRY_S", 0.01)
    monkeypatch.setattr(announcement, "SLOW_S", 0.0)
    folder = HeldUp(RunDir.create(tmp_path / "run").path)
    folder.answers.clear()
    yield folder
    folder.answers.set()


def test_late_address_is_told_once_and_then_written(folder):
    async def main():
        told = []
        Announcement(folder, HERE, {"tls": "off"}, is_leader=lambda: True, tell=told.append).make()
        await wait_until_async(lambda: told, "the first event")
        assert not folder.is_known
        folder.answers.set()
        await wait_until_async(lambda: len(told) > 1, "the second event")
        return [event.what for event in told]

    assert asyncio.run(main()) == ["storage_failed", "storage_back"]
    assert folder.coordinator() == HERE


def test_address_of_a_coordinator_that_lost_its_place_meanwhile_is_not_written(folder):
    async def main():
        leads = True
        made = Announcement(folder, HERE, {"tls": "off"}, is_leader=lambda: leads, tell=lambda event: None)
        made.make()
        leads = False
        folder.answers.set()
        await wait_until_async(
            lambda: not any(each.name == NAME for each in threading.enumerate()), "the end of its thread"
        )

    asyncio.run(main())
    assert not folder.is_known and not list(folder.path.glob("job.json*"))


def test_files_that_somebody_removes_are_written_again(tmp_path, monkeypatch):
    """The folder is removed and made again; while it is gone none is made."""
    monkeypatch.setattr(announcement, "_LOOK_S", 0.01)
    folder = RunDir.create(tmp_path / "run")
    secret = folder.make_secret()

    async def main():
        leads = True
        Announcement(
            folder, HERE, {"tls": "off"}, is_leader=lambda: leads, tell=lambda event: None, secret=secret
        ).make()
        await wait_until_async(lambda: folder.is_known, "the first address")
        while folder.path.exists():  # a file may be written while it is removed
            shutil.rmtree(folder.path, ignore_errors=True)
        await asyncio.sleep(0.1)
        assert not folder.path.exists()
        folder.path.mkdir()
        await wait_until_async(lambda: folder.is_known and folder.logs.is_dir(), "the files in the new folder")
        leads = False
        await wait_until_async(
            lambda: not any(each.name == NAME for each in threading.enumerate()), "the end of its thread"
        )

    asyncio.run(main())
    assert folder.coordinator() == HERE and folder.credentials().secret == secret


def test_announcement_of_another_job_is_left_alone(tmp_path):
    folder = RunDir.create(tmp_path / "run")
    made = Announcement(folder, HERE, {"tls": "off"}, is_leader=lambda: True, tell=lambda event: None, secret=b"s" * 32)
    other = Address(host="there", port=2)
    folder.announce(other, tls="off")
    secret = folder.make_secret()
    made._restore()
    assert folder.coordinator() == other and folder.secret_file.read_bytes() == secret
