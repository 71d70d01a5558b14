"""When a main thread counts as waiting for its device. tests/gpu/test_hang_on_gpu.py has the same on a real one."""

from __future__ import annotations

import threading

import pytest
import torch

from deadpool.trainer import device_wait
from deadpool.trainer.device_wait import DeviceWait


class StreamTwin:
    device = torch.device("cuda", 0)
    busy, broken = True, False

    def query(self) -> bool:
        if self.broken:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return not self.busy


@pytest.fixture
def stream(monkeypatch):
    stream = StreamTwin()
    made = [0]
    stream.made = made
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(device_wait, "_tensors_made", lambda device: made[0])
    return stream


@pytest.fixture
def still():
    """The identity of a thread that stands still."""
    begun, over = threading.Event(), threading.Event()

    def stand() -> None:
        begun.set()
        over.wait()

    thread = threading.Thread(target=stand)
    thread.start()
    begun.wait()
    yield thread.ident
    over.set()
    thread.join()


def begun() -> DeviceWait:
    wait = DeviceWait()
    wait.begin_step()
    return wait


def samples(wait, thread, count=4):
    return [wait.stands_still(thread) for _ in range(count)]


def test_nothing_changes_and_the_device_works(stream, still):
    assert samples(begun(), still)[-1]


def test_idle_device_is_waited_for_by_nobody(stream, still):
    stream.busy = False
    assert not any(samples(begun(), still))


def test_new_tensors_are_progress(stream, still):
    wait = begun()
    for _ in range(4):
        stream.made[0] += 1
        assert not wait.stands_still(still)


def test_another_instruction_is_progress(stream):
    wait = begun()
    me = threading.get_ident()
    assert not wait.stands_still(me)
    assert not wait.stands_still(me)
    assert not wait.stands_still(me)


def test_broken_device_is_no_wait(stream, still):
    stream.broken = True
    assert not any(samples(begun(), still))


def test_without_a_device_there_is_no_wait(still):
    assert not any(samples(begun(), still))
