"""Slot memory that is registered with a device, or cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from deadpool.errors import DeviceError
from deadpool.protocol.seal import Geometry
from deadpool.snapshot.arena.arena import Segment
from deadpool.trainer.capture import slots
from deadpool.trainer.capture.slots import Registrar


class RuntimeTwin:
    def __init__(self, refuses: bool) -> None:
        self.registered: dict[int, int] = {}
        self._refuses = refuses

    def register(self, address: int, size: int) -> None:
        if self._refuses:
            raise DeviceError("cudaHostRegister: out of memory (2)")
        self.registered[address] = size

    def unregister(self, address: int) -> None:
        del self.registered[address]


@pytest.fixture
def segment() -> Iterator[Segment]:
    made = Segment.create("registration", Geometry(record_capacity=4096, unique_bytes=8192, replica_bytes=0), 2)
    yield made
    made.close()


@pytest.fixture
def said() -> list[tuple[str, dict[str, Any]]]:
    return []


def make(monkeypatch: pytest.MonkeyPatch, said: list[Any], *, refuses: bool = False) -> tuple[Registrar, RuntimeTwin]:
    twin = RuntimeTwin(refuses)
    monkeypatch.setattr(slots, "runtime", lambda: twin)
    monkeypatch.setattr(slots.torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(slots.torch.cuda, "current_device", lambda: 0)
    return Registrar(lambda what, **detail: said.append((what, detail))), twin


def test_job_without_a_device_registers_nothing(monkeypatch, said, segment):
    registrar, twin = make(monkeypatch, said)
    registrar.add(1, segment)
    registrar.await_ready(1)
    registrar.remove(1)
    assert not twin.registered and not said


def test_segments_from_before_and_after_the_job_began(monkeypatch, said, segment):
    registrar, twin = make(monkeypatch, said)
    registrar.add(1, segment)
    registrar.enable()
    registrar.await_ready(1)
    assert list(twin.registered.values()) == [segment.total_bytes]
    registrar.enable()  # said twice
    registrar.await_ready(1)
    registrar.remove(1)
    assert not twin.registered and not said


def test_refusal_is_said_once_and_nobody_waits_for_it(monkeypatch, said, segment, capsys):
    registrar, _ = make(monkeypatch, said, refuses=True)
    registrar.enable()
    registrar.add(1, segment)
    registrar.await_ready(1)
    registrar.add(2, segment)
    registrar.await_ready(2)
    assert said == [("pinning_failed", {"reason": "cudaHostRegister: out of memory (2)"})]
    assert capsys.readouterr().err.count("deadpool: slot memory is not registered") == 1
