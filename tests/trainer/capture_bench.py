"""A job's loop around a device twin, without an agent: the real Job, core and state, and a list of what was said."""

from __future__ import annotations

import threading
from typing import Any

import torch
from device_twin import DeviceTwin
from waiting import LIMIT_S

from deadpool.protocol.identity import Generation, Layout, Schedule, Version
from deadpool.protocol.messages import Captured, Missed, Settings, SlotRef
from deadpool.protocol.trainer_core import TrainerCore
from deadpool.snapshot.arena.slot import read_seal
from deadpool.snapshot.state.state import ProtectedState
from deadpool.trainer.capture.slots import Registrar
from deadpool.trainer.guards.guard import Findings
from deadpool.trainer.job import Job
from deadpool.trainer.job_journal import JobJournal
from deadpool.trainer.process.injected_fault import InjectionTriggers
from deadpool.trainer.process.session import Session
from deadpool.trainer.recovery.stops import ForwardStop
from deadpool.trainer.recovery.unwinding import UnwindWatchdog
from deadpool_lab.workload.sealed_slot import seal_slot

FIRST, SECOND = Generation(1, 1), Generation(1, 2)
SLOTS = 3


class Quiet:
    """The part of RecordingSchedule that a loop calls."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class PeersThere:
    """Groups whose connections are all whole."""

    shows_losses = True
    names: tuple[str, ...] = ("default",)

    def has_lost_a_peer(self) -> bool:
        return False


class SessionTwin:
    rank, name, role, final_number = 0, "n0.0", None, 0

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.core = TrainerCore()
        self.settings = Settings(
            layout=Layout(positions=1, per_node=1, holders=0),
            slots=SLOTS,
            heartbeat_s=0.001,
            unwind_s=1.0,
            in_place="always",
        )
        self.pending_injections = InjectionTriggers(self)  # type: ignore[arg-type]
        self.registrar = Registrar(self.emit)
        self.findings = Findings(self)  # type: ignore[arg-type]
        self.audit = self.step_audit = None
        self.file_guard = self.served_stores = self.code_watch = Quiet()
        self.recording_schedule = Quiet()
        self.groups = PeersThere()
        self.unwind_watch = UnwindWatchdog(lambda _: None)
        self.forward_stop = ForwardStop(lambda: self.core.is_aborted)
        self.said: list[Any] = []
        self._released: list[int] = []
        self.slots: dict[SlotRef, memoryview] = {}

    end_preparation = Session.end_preparation
    wait = Session.wait
    await_halt = Session.await_halt
    leave_if_device_broke = Session.leave_if_device_broke
    let_go_of_segments = Session.let_go_of_segments

    def send(self, message: Any) -> None:
        with self.changed:
            self.said.append(message)
            self.changed.notify_all()

    def emit(self, what: str, **detail: Any) -> None:
        self.said.append((what, detail))

    def slot(self, ref: SlotRef) -> tuple[memoryview, Any]:
        return self.slots[ref], self.core.geometry

    def grant(self, count: int = SLOTS) -> None:
        """As an agent does after Declare, and after a permit: slots that no version lies in."""
        assert self.core.geometry is not None
        for _ in range(count):
            ref = SlotRef(segment=1, index=len(self.slots))
            self.slots[ref] = memoryview(bytearray(self.core.geometry.slot_bytes))
            with self.changed:
                self.core.grant(self.core.generation, ref)
                self.changed.notify_all()

    def halt(self) -> None:
        with self.changed:
            self.core.halt(SECOND)
            self.changed.notify_all()

    def of_kind(self, kind: type) -> list[Any]:
        with self.changed:
            return [message for message in self.said if isinstance(message, kind)]


class CaptureBench:
    """A model whose optimizer has state from the beginning: SGD with momentum, one step done."""

    def __init__(self, twin: DeviceTwin, *, granted: int = SLOTS, every: int = 1) -> None:
        torch.manual_seed(0)
        self.twin, self.session = twin, SessionTwin()
        self.model = self.make_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.train()
        self.state = ProtectedState(
            {"model": self.model, "optimizer": self.optimizer},
            replicas={},
            rank=0,
            node_of=int,
            clone_host_buffers=True,
            make_lane=lambda _: twin,
        )
        core = self.session.core
        core.take_seat(FIRST, 0, Schedule(every=every))
        self.job = Job(self.session, self.state, [], JobJournal(self.session))  # type: ignore[arg-type]
        core.declare(self.state.measure())
        self.session.grant(granted)
        self.job._begin()

    def make_model(self) -> Any:
        return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4))

    def step(self) -> None:
        """One step of the script's, with its boundary."""
        self.train()
        self.end_step()

    def end_step(self) -> None:
        """The block ends, and the script asks for the next step."""
        self.job.leave_step(None)
        self.job.complete_step()

    def train_freely(self) -> None:
        """Writes to all parameters, without an optimizer that would raise after an abort."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(1.0)

    def train(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(6, 8)).square().mean().backward()
        self.optimizer.step()

    def close(self) -> None:
        self.twin.catch_up()
        self.twin.copy()
        self.job.capturer.cancel()
        self.job.capturer.close()

    def await_said(self, kind: type, count: int) -> list[Any]:
        found = self.session.wait(lambda: len(self.session.of_kind(kind)) >= count or None, timeout_s=LIMIT_S)
        assert found, f"{count} of {kind.__name__} expected: {self.session.said}"
        return self.session.of_kind(kind)

    def await_observed(self, number: int) -> None:
        core = self.session.core
        assert self.session.wait(lambda: core.has_observed(Version(FIRST, number)) or None, timeout_s=LIMIT_S)

    def captured(self) -> list[int]:
        return [message.version.number for message in self.session.of_kind(Captured)]

    def missed(self) -> list[int]:
        return [message.number for message in self.session.of_kind(Missed)]

    def restore(self, captured: Captured) -> None:
        """From the slot, sealed as the agent would."""
        slot, geometry = self.session.slot(captured.slot)
        assert read_seal(slot) is None
        extent = self.state.extent(bytes(captured.record_bytes))
        seal = seal_slot(slot, geometry, rank=0, version=captured.version, extent=extent)
        self.state.restore(slot, geometry, seal.extent)
