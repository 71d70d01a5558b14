"""A trainer's side of its agent: the link, the thread that listens to it, and what it has heard so far.

The monitor thread is the only reader of the link. On a Halt it raises the abort flag first and aborts every group
second; that order is the seal rule. The script's thread waits here for what it needs next.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from deadpool.backend.groups import Groups
from deadpool.backend.nccl import ABORT_S
from deadpool.environment import AGENT_VARIABLE, HOST_VARIABLE, RENDEZVOUS_VARIABLE, TRAINER_VARIABLE
from deadpool.events import Event
from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import (
    Attach,
    Detach,
    DeviceLost,
    End,
    Final,
    Grant,
    Halt,
    Hung,
    Injection,
    Missed,
    Proceed,
    Recording,
    Rehearse,
    Report,
    Reschedule,
    Seat,
    Settings,
    SlotRef,
    Stand,
    TrainerHello,
)
from deadpool.protocol.seal import Geometry
from deadpool.protocol.topology import Address
from deadpool.protocol.trainer_core import TrainerCore
from deadpool.snapshot.arena import Segment
from deadpool.trainer import device
from deadpool.trainer.collective_recording import RecordingSchedule
from deadpool.trainer.control_flow import CODE_RESTART, Superseded
from deadpool.trainer.injected_fault import PendingInjections
from deadpool.trainer.registration import Registrar
from deadpool.trainer.rendezvous import RendezvousStore
from deadpool.trainer.unwind_watchdog import UnwindWatch
from deadpool.wire.credentials import read_credentials
from deadpool.wire.trainer_link import TrainerEnd

GROUP_TIMEOUT_S = 1800.0

T = TypeVar("T")


class Session:
    def __init__(self, link: TrainerEnd, name: str, host: str, store: Address) -> None:
        self.name, self._link = name, link
        self.store_address = store  # of this node: whichever survivor a plan names can host a generation
        self.core = TrainerCore()
        self.groups = Groups(
            hostname=host, timeout_s=GROUP_TIMEOUT_S, on_torn_down=self._torn_down, on_hang=self._abort_hangs
        )
        self.recording_schedule = RecordingSchedule(self)
        self.changed = threading.Condition()  # guards everything below, and the core
        self.role: Seat | Rehearse | None = None  # as last told, at any moment
        self.playing: Seat | Rehearse | None = None  # what this run of the script began as, and stays to its end
        self.settings: Settings | None = None
        self.recordings: dict[int, Recording] = {}  # by rank, as last told
        self.segments: dict[int, Segment] = {}
        self._released: list[int] = []  # segments to let go of
        self.final_number = 0
        self._latest: dict[type, Any] = {}
        self._cause: str | None = None
        self.credentials = read_credentials()
        self.unwind_watch = UnwindWatch(self._stuck)
        self.pending_injections = PendingInjections(self)
        self.registrar = Registrar(self.emit)

    @classmethod
    def from_environment(cls) -> Session | None:
        if AGENT_VARIABLE not in os.environ:
            return None
        host = os.environ.get(HOST_VARIABLE, "127.0.0.1")
        store = Address.parse(os.environ[RENDEZVOUS_VARIABLE])
        return cls(TrainerEnd(os.environ[AGENT_VARIABLE]), os.environ[TRAINER_VARIABLE], host, store)

    def start(self) -> None:
        self.groups.install()
        threading.Thread(target=self._listen, name="deadpool-monitor", daemon=True).start()
        self.send(TrainerHello(trainer=self.name, pid=os.getpid(), store=self.store_address))

    @property
    def rank(self) -> int:
        assert self.playing is not None
        return self.playing.rank

    # --- the monitor thread ------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Without a monitor a trainer could hang unseen: if this thread ends, for whatever reason, the process does."""
        try:
            for message, take_descriptor in self._link.messages():
                self._hear(message, take_descriptor)
        except Exception:
            traceback.print_exc()
        os._exit(1)

    def _hear(self, message: Any, take_descriptor: Callable[[], int]) -> None:
        overlooked: list[Missed] = []
        with self.changed:
            match message:
                case Halt(generation=generation, cause=cause):
                    self.core.halt(generation)
                    self._cause = cause
                case Seat(cause=cause):
                    self.role, self._cause = message, cause
                case Rehearse():
                    self.role = message
                case Attach(segment=segment, geometry=geometry, count=count):
                    self.segments[segment] = Segment.attach(take_descriptor(), geometry, count)
                    self.registrar.add(segment, self.segments[segment])
                    self.core.attach(segment, geometry)
                case Detach(segment=segment):
                    self._released.append(segment)
                case Grant(generation=generation, slot=slot):
                    self.core.grant(generation, slot)
                case Final(number=number):
                    self.final_number = number
                case Reschedule(generation=generation, schedule=schedule):
                    overlooked = self.core.reschedule(generation, schedule)
                case Stand(generation=generation, number=number):
                    self.core.stand(generation, number)
                case Proceed(generation=generation):
                    self.core.proceed(generation)
                case Settings():
                    self.settings = message
                case Injection():
                    self.pending_injections.arm(message)
                case Recording(rank=rank):
                    self.recordings[rank] = message
                case End():
                    os._exit(0)
                case _:
                    self._latest[type(message)] = message
            self.changed.notify_all()
        for missed in overlooked:
            self.send(missed)
        if isinstance(message, Halt):
            self.unwind_watch.tell_where_if_long()
            shut = self.groups.abort()
            self.emit("aborted", sockets=shut)
            self.unwind_watch.begin(message.generation)

    def _torn_down(self, seconds: float) -> None:
        self.emit("torn_down", seconds=seconds)

    def _abort_hangs(self) -> None:
        self.send(Hung(found=f"its communicators could not be aborted within {ABORT_S:g} s"))
        os._exit(CODE_RESTART)

    def _stuck(self, seconds: float) -> None:
        """An abort that does not get through is one more fault, of this process only."""
        self.send(Hung(found=f"stood still inside torch for {seconds:.1f} s after the abort"))
        os._exit(CODE_RESTART)

    # --- the script's thread -----------------------------------------------------------------------------------------

    def leave_if_device_broke(self) -> None:
        """Wherever an exception may have been the device's: then nothing in this process can go on, and another one
        takes its place. At once: what the script holds on the device cannot even be given back."""
        error = device.what_broke()
        if error is None:
            return
        if sys.exception() is not None:
            traceback.print_exc()
        self.emit("device_lost", reason=error)
        self.send(DeviceLost(error=error))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(CODE_RESTART)

    def send(self, message: Any) -> None:
        self._link.send(message)

    def emit(self, what: str, *, step: int | None = None, **detail: Any) -> None:
        event = Event(
            what=what,
            cause=self._cause,
            generation=str(self.core.aborted if self.core.is_aborted else self.core.generation),
            rank=self.role.rank if self.role is not None else None,
            step=step,
            detail={"trainer": self.name, **detail},
        )
        self.send(Report(records=(event.record(t=time.time()),)))

    def wait(self, ready: Callable[[], T | None], *, timeout_s: float | None = None) -> T | None:
        """Until `ready` gives something; None when time is up. Who may take how long is the coordinator's to judge."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self.changed:
            while (found := ready()) is None:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self.changed.wait(left)
            return found

    def expect(self, kind: type[T], generation: Generation) -> T:
        """The message of this kind and generation. Superseded: a newer fence or seat came instead."""
        found = self.wait(lambda: self.look_for(kind, generation))
        assert found is not None
        return found

    def look_for(self, kind: type[T], generation: Generation) -> T | None:
        """The message of this kind and generation, if it has come. Superseded: it will not."""
        with self.changed:
            if self.core.aborted > generation or (self.role is not None and _newer_seat(self.role, generation)):
                raise Superseded
            message = self._latest.get(kind)
            return message if message is not None and message.generation == generation else None

    def await_halt(self, timeout_s: float | None) -> bool:
        """Whether the fence that explains a failure has come."""
        return self.wait(lambda: True if self.core.is_aborted else None, timeout_s=timeout_s) is not None

    def slot(self, ref: SlotRef) -> tuple[memoryview, Geometry]:
        self.registrar.await_ready(ref.segment)
        return self.unready_slot(ref)

    def unready_slot(self, ref: SlotRef) -> tuple[memoryview, Geometry]:
        """Its memory may not be registered yet."""
        segment = self.segments[ref.segment]
        return segment.slot(ref.index), segment.geometry

    def let_go_of_segments(self, forget_slots: Callable[[], None]) -> None:
        """Of those that the agent has given up. Main thread: what is mapped here may be planned for by the copier."""
        with self.changed:
            released, self._released = self._released, []
        if released:
            forget_slots()
        for number in released:
            self.registrar.remove(number)
            self.segments.pop(number).close()

    def rendezvous(self, address: Address, generation: Generation, part: str = "") -> RendezvousStore:
        """Keys of different generations, and of different parts of one, do not meet."""
        timeout, prefix = timedelta(seconds=GROUP_TIMEOUT_S), f"generation-{generation}"
        return RendezvousStore(address, self.credentials, f"{prefix}/{part}" if part else prefix, timeout)


def _newer_seat(role: Seat | Rehearse, generation: Generation) -> bool:
    return isinstance(role, Seat) and role.generation > generation
