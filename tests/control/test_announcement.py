"""A coordinator that takes over while the disk of its run folder does not answer leads all the same."""

from __future__ import annotations

import asyncio
import threading

import pytest
from waiting import wait_until_async

from deadpool.control import announcement
from deadpool.control.announcement import Announcement
from deadpool.control.run_dir import RunDir
from deadpool.protocol.topology import Address

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
