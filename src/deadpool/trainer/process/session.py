"""A trainer's link to its agent: the thread that listens to it, and what the agent has said so far.

The monitor thread is the only reader of the link. On a Halt it raises the abort flag first and aborts every group
second; sealing depends on that order (rule 8, sealing after the abort flag). The script's thread waits here for the
next order.
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
from deadpool.backend.nccl_backends import ABORT_S
from deadpool.backend.plain_groups import PlainGroups
from deadpool.config.environment import AGENT_VARIABLE, HOST_VARIABLE, RENDEZVOUS_VARIABLE, TRAINER_VARIABLE
from deadpool.events.event import Event
from deadpool.host.child_processes import be_observed_by
from deadpool.protocol.identity import Address, Generation
from deadpool.protocol.messages import (
    Attach,
    Audit,
    AuditOver,
    Detach,
    DeviceLost,
    End,
    Final,
    Grant,
    GroupsDestroyed,
    Halt,
    Hung,
    Injected,
    Injection,
    Missed,
    Ping,
    Pong,
    Proceed,
    Recording,
    Rehearse,
    Report,
    Reschedule,
    Restore,
    Seat,
    Settings,
    SlotRef,
    Stand,
    StepAudit,
    ToTrainerMessage,
    TrainerHello,
    TrainerMessage,
)
from deadpool.protocol.recovery_walk import Abandon, Load, LoadEarly, RebuildGroups, RecoveryWalk, Resume
from deadpool.protocol.seal import Geometry
from deadpool.protocol.trainer_core import TrainerCore
from deadpool.snapshot.arena.arena import Segment
from deadpool.trainer.capture.slots import Registrar
from deadpool.trainer.current import CODE_RESTART, Superseded
from deadpool.trainer.guards.distributed_objects import ServedStores
from deadpool.trainer.guards.file_guard import FileGuard
from deadpool.trainer.guards.guard import Findings
from deadpool.trainer.process import environment, forked_child, torch_check
from deadpool.trainer.process.code_watch import CodeWatch
from deadpool.trainer.process.injected_fault import InjectionTriggers
from deadpool.trainer.process.rendezvous import RendezvousStore
from deadpool.trainer.recovery.collective_recording import RecordingSchedule
from deadpool.trainer.recovery.stops import ForwardStop
from deadpool.trainer.recovery.unwinding import UnwindWatchdog, where_script_stands
from deadpool.wire.credentials import read_credentials
from deadpool.wire.trainer_link import TrainerEnd

GROUP_TIMEOUT_S = 1800.0

T = TypeVar("T")


class Session:
    def __init__(self, link: TrainerEnd, name: str, host: str, store: Address) -> None:
        self.name, self._link = name, link
        self.store_address = store  # of this node's rendezvous store: a plan chooses which node's store is used
        self.core = TrainerCore()
        self.walk = RecoveryWalk(self.core)
        self.groups: Groups | PlainGroups = self._make_groups(host)
        self.recording_schedule = RecordingSchedule(self)
        self.changed = threading.Condition()  # guards everything below, and the core
        self.role: Seat | Rehearse | None = None  # the newest order
        self.playing: Seat | Rehearse | None = None  # the order that the script began under
        self.settings: Settings | None = None
        self.recordings: dict[int, Recording] = {}  # by rank, the newest of each
        self.to_load: Restore | None = None  # where a script that began again goes on (plain_start.py)
        self.ends_at_halt = False  # the script runs, and this process cannot come back to a step boundary
        self.segments: dict[int, Segment] = {}
        self._released: list[int] = []  # segments that the agent has given up and that are still mapped
        self.final_number = 0
        self.audit: Audit | None = None  # the one that is under way
        self.step_audit: StepAudit | None = None  # the same
        self._cause: str | None = None
        self.credentials = read_credentials()
        self.unwind_watch = UnwindWatchdog(self._stuck)
        self.forward_stop = ForwardStop(lambda: self.core.is_aborted)
        self.pending_injections = InjectionTriggers(self)
        self.registrar = Registrar(self.emit)
        self.findings = Findings(self)
        self.file_guard = FileGuard(self)
        self.code_watch = CodeWatch(self)
        self.served_stores = ServedStores(self.findings)

    def end_preparation(self) -> None:
        """The loop begins, or this process has become a live rank in it."""
        self.file_guard.end()
        self.served_stores.enter_loop()

    def _make_groups(self, host: str) -> Groups | PlainGroups:
        if torch_check.verdict().level is not torch_check.Level.WHOLE:
            return PlainGroups(timeout_s=GROUP_TIMEOUT_S)
        return Groups(
            hostname=host,
            timeout_s=GROUP_TIMEOUT_S,
            on_torn_down=self._torn_down,
            on_hang=self._abort_hangs,
            on_all_destroyed=lambda: self.send(GroupsDestroyed()),
        )

    @classmethod
    def from_environment(cls) -> Session | None:
        if AGENT_VARIABLE not in os.environ:
            return None
        host = os.environ.get(HOST_VARIABLE, "127.0.0.1")
        store = Address.parse(os.environ[RENDEZVOUS_VARIABLE])
        link = TrainerEnd(os.environ[AGENT_VARIABLE])
        be_observed_by(link.agent_pid)  # to tell a rank that hangs from one that waits for a slow service
        return cls(link, os.environ[TRAINER_VARIABLE], host, store)

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
        """If this thread ends, for whatever reason, the process does: without a monitor a trainer could hang unseen."""
        try:
            for message, take_descriptor in self._link.messages():
                self._on_message(message, take_descriptor)
        except Exception:
            traceback.print_exc()
        os._exit(1)

    def _on_message(self, message: ToTrainerMessage, take_descriptor: Callable[[], int]) -> None:
        overlooked: list[Missed] = []
        with self.changed:
            match message:
                case Halt(generation=generation, cause=cause):
                    self.core.halt(generation)
                    self.forward_stop.begin()
                    self._cause = cause
                case Seat(cause=cause):
                    self.role, self._cause = message, cause
                    self.walk.on_role(message)
                case Rehearse():
                    self.role = message
                    self.walk.on_role(message)
                case Attach(segment=segment, geometry=geometry, count=count):
                    self.segments[segment] = Segment.attach(take_descriptor(), geometry, count)
                    self.registrar.add(segment, self.segments[segment])
                    self.core.attach(segment, geometry)
                case Detach(segment=segment):
                    self._released.append(segment)
                case Grant(generation=generation, slot=slot, rank=rank):
                    self.core.grant(generation, slot, rank)
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
                    self.pending_injections.add(message)
                case Audit() | StepAudit() | AuditOver():
                    self.audit = message if isinstance(message, Audit) else None
                    self.step_audit = message if isinstance(message, StepAudit) else None
                case Recording(rank=rank):
                    self.recordings[rank] = message
                case Ping():
                    self.send(Pong())
                case End():
                    os._exit(0)
                case _:
                    self.walk.on_order(message)
            self.changed.notify_all()
        for missed in overlooked:
            self.send(missed)
        if isinstance(message, Halt):
            self.end_if_halted()
            self.unwind_watch.dump_stacks_if_step_is_long()
            shut = self.groups.abort()
            self.emit("aborted", sockets=shut)
            self.unwind_watch.begin(message.generation)

    def end_if_halted(self) -> None:
        """Where groups can be neither aborted nor rebuilt, only the end of the process ends a collective."""
        if self.ends_at_halt and self.core.is_aborted:
            self.emit("trainer_restarts", reason="its groups can be neither aborted nor rebuilt in this torch")
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(CODE_RESTART)

    def _torn_down(self, seconds: float) -> None:
        self.emit("torn_down", seconds=seconds)

    def _abort_hangs(self) -> None:
        self.send(Hung(found=f"its communicators could not be aborted within {ABORT_S:g} s"))
        os._exit(CODE_RESTART)

    def _stuck(self, seconds: float) -> None:
        """An abort that has no effect is one more fault, of this process only."""
        main = threading.main_thread().ident
        assert main is not None
        place = where_script_stands(main) or "unknown line"
        self.send(Hung(found=f"stood still inside torch for {seconds:.1f} s after the abort ({place})"))
        os._exit(CODE_RESTART)

    # --- the script's thread -----------------------------------------------------------------------------------------

    def leave_if_device_broke(self) -> None:
        """Called wherever an exception may come from the device. A process whose device is broken cannot go on: another
        one takes its place. It ends at once: it cannot even free what the script holds on the device."""
        error = environment.what_broke()
        if error is None:
            return
        if sys.exception() is not None:
            traceback.print_exc()
        self.emit("device_lost", reason=error)
        self.send(DeviceLost(error=error))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(CODE_RESTART)

    def send(self, message: TrainerMessage | Injected) -> None:
        if forked_child.is_child():
            return  # the link, and the lock around it, are the trainer's
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
        """Waits until `ready` returns something; None when time is up. A trainer times out no peer: how long a rank
        may take is the coordinator's decision (rule 20, timeouts)."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self.changed:
            while (found := ready()) is None:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self.changed.wait(left)
            return found

    def expect(self, kind: type[T], generation: Generation) -> T:
        """Waits for the order of this kind and generation. Superseded: a newer fence or seat came instead."""
        found = self.wait(lambda: self.look_for(kind, generation))
        assert found is not None
        return found

    def look_for(self, kind: type[T], generation: Generation) -> T | None:
        """The order of this kind and generation, if it has come. Superseded: it will not."""
        with self.changed:
            if self.walk.is_superseded(generation):
                raise Superseded
            return self.walk.order(kind, generation)

    def next_action(self) -> LoadEarly | Load | RebuildGroups | Resume:
        """Waits until the walk from rest to Go goes on. Superseded: it does not."""
        with self.changed:
            while (action := self.walk.advance()) is None:
                self.changed.wait()
        if isinstance(action, Abandon):
            raise Superseded
        return action

    def await_halt(self, timeout_s: float | None) -> bool:
        """Whether the fence that explains a failure has come within the timeout."""
        return self.wait(lambda: True if self.core.is_aborted else None, timeout_s=timeout_s) is not None

    def slot(self, ref: SlotRef) -> tuple[memoryview, Geometry]:
        self.registrar.await_ready(ref.segment)
        return self.unready_slot(ref)

    def unready_slot(self, ref: SlotRef) -> tuple[memoryview, Geometry]:
        """Returns what `slot` does, but the memory may not be registered with the device yet."""
        segment = self.segments[ref.segment]
        return segment.slot(ref.index), segment.geometry

    def let_go_of_segments(self, forget_slots: Callable[[], None]) -> None:
        """Unmaps segments that the agent has given up. On the main thread, because a copy plan may still name them."""
        with self.changed:
            released, self._released = self._released, []
        if released:
            forget_slots()
        for number in released:
            self.registrar.remove(number)
            self.segments.pop(number).close()

    def rendezvous(self, address: Address, generation: Generation, part: str = "") -> RendezvousStore:
        """Different generations, and different parts of one, do not see each other's keys."""
        timeout, prefix = timedelta(seconds=GROUP_TIMEOUT_S), f"generation-{generation}"
        return RendezvousStore(address, self.credentials, f"{prefix}/{part}" if part else prefix, timeout)
