"""The agent process: an asyncio shell around the agent's core, its trainers and its data plane."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, assert_never

from deadpool.config.job_config import JobConfig
from deadpool.config.timeouts import STREAM_AT_LEAST_S
from deadpool.control.agent.coordinator_client import CoordinatorClient, unreachable
from deadpool.control.agent.data_plane import DataPlane
from deadpool.control.agent.fault_injection import NodeInjections
from deadpool.control.agent.node_reports import NodeReports
from deadpool.control.agent.rendezvous import RendezvousServer
from deadpool.control.agent.threads import ThreadPriority, bulk_cpus
from deadpool.control.agent.transports import chosen_way
from deadpool.control.launch.examination import NodeExamination
from deadpool.control.launch.run_dir import KEPT_FOLDER
from deadpool.control.loops import CoreDriver
from deadpool.control.trainers.health_watch import HealthWatch
from deadpool.control.trainers.parked_command import ParkedCommand
from deadpool.control.trainers.process_activity import ActivityWatcher
from deadpool.control.trainers.process_memory import newly_parked
from deadpool.control.trainers.processes import TrainerProcesses
from deadpool.host.child_processes import outlive_parent
from deadpool.host.private_files import ProcessLock
from deadpool.protocol.agent.core import Agent
from deadpool.protocol.effects import (
    AgentEffect,
    CutStreams,
    Emit,
    Finish,
    ImportModules,
    KillTrainer,
    LookElsewhere,
    ProbePeers,
    ReleaseLease,
    StartParkedWork,
    StartTrainer,
    StopParkedWork,
    TakeLease,
    ToCoordinator,
    ToTrainer,
)
from deadpool.protocol.health import HealthSample
from deadpool.protocol.identity import Address, Message
from deadpool.protocol.inputs import (
    Activity,
    AgentInput,
    FromCoordinator,
    FromTrainer,
    HealthSampled,
    LeasedElsewhere,
    LeaseTaken,
    LeaveAsked,
    MemorySeen,
    PeersProbed,
    StopAsked,
    TrainerActivity,
    TrainerExited,
)
from deadpool.protocol.messages import (
    Examine,
    Fence,
    Injected,
    Injection,
    Join,
    Seat,
    ToTrainerMessage,
    TrainerHello,
    Welcome,
    is_from_trainer,
)
from deadpool.wire.credentials import Credentials
from deadpool.wire.trainer_link import AgentEnd, TrainerListener

_STALL_S = 0.5  # a timer that fires later than this means that this process did not run
_LEASE_LOOK_S = 0.5  # until a spare notices that its machine serves another job


class AgentProcess:
    def __init__(
        self,
        *,
        node: str,
        rack: str | None,
        spare: bool,
        settings: JobConfig,
        script: list[str],
        host: str,
        logs: Path,
        credentials: Credentials,
        fork_server: socket.socket | None = None,
        preload: Sequence[str] = (),
        ready_file: Path | None = None,
        lease: ProcessLock | None = None,
    ) -> None:
        """Makes an agent. One with a `lease` has to take the machine first, since it may serve other jobs too."""
        self._core = Agent(
            node=node,
            standby=settings.spare_trainers,
            spare=spare,
            rehearsals=settings.rehearsals,
            shared=lease is not None,
            works=spare and bool(settings.while_parked),
        )
        self._lease, self._parent = lease, os.getppid()
        told = {"node": node, "logs": str(logs)}
        self._parked = ParkedCommand(settings.while_parked, logs / f"{node}.parked.log", told, on_ended=self._feed)
        self.node, self._rack, self._spare, self._host = node, rack, spare, host
        self._credentials = credentials
        self._incarnation = secrets.token_hex(4)
        self._client: CoordinatorClient | None = None
        self._data_address: Address | None = None
        self._ends: dict[str, AgentEnd] = {}
        self._driver = CoreDriver(self._core, perform=self._perform, stall_s=_STALL_S)
        self._probing: set[asyncio.Task[None]] = set()
        self._outcome: asyncio.Future[Finish] = asyncio.get_running_loop().create_future()
        self._injections = NodeInjections(
            self._core.trainers,
            send=self._to_trainer,
            signal_trainer=self._signal_trainer,
            report=lambda event: self._reports.report(event),
        )
        self._examination = NodeExamination(
            [f"--name={node}", f"--run-dir={logs}"], send=lambda found: self._reports.send(found)
        )
        self._data = DataPlane(
            self._core,
            host=host,
            credentials=credentials,
            post=self._feed,
            note=lambda event: self._reports.report(event),
            disturb=self._injections.disturb,
            deadline_s=STREAM_AT_LEAST_S,
            priority=ThreadPriority(settings.bulk_nice, bulk_cpus(settings.bulk_cpus)),
            kept=logs / KEPT_FOLDER,
            way=chosen_way(settings.transport, encrypted=credentials.tls is not None),
        )
        door = f"deadpool-{node}-{secrets.token_hex(8)}"
        self._door = TrainerListener(door, self._on_trainer_message, self._on_trainer_disconnected)
        self._rendezvous = RendezvousServer(credentials)
        self._trainers = TrainerProcesses(
            script=script,
            door=door,
            host=host,
            logs=logs,
            log_file_bytes=settings.log_mb * 1_000_000,
            show=lambda name, line: self._reports.show(name, line),
            on_exit=self._on_trainer_exited,
            on_failure=self.stop,
            fork_server=fork_server,
            preload=preload,
            parked_state=settings.parked_state,
        )
        self._watcher = ActivityWatcher(self._trainers.pids, self._on_activity)
        loop = asyncio.get_running_loop()
        self._health = HealthWatch(
            Path(settings.health_root.replace("{node}", node)),
            lambda sample: _from_thread(loop, lambda: self._on_health(sample)),
            lambda source, reason: _from_thread(loop, lambda: self._reports.report_unseen(source, reason)),
        )
        self._reports = NodeReports(
            self._core,
            node=node,
            host=host,
            settings=settings,
            data=self._data,
            processes=self._trainers,
            ready_file=ready_file,
        )

    async def run(self, coordinators: Sequence[Address], *, patience_s: float) -> Finish:
        """Joins the job, and returns when the job ends or this node leaves it."""
        client = CoordinatorClient(
            coordinators, self._credentials, join=self._join, feed=self._feed, order=self._on_request
        )
        if not await self._connect_first(client, patience_s):
            return await self._outcome
        self._client = client
        self._reports.use(client)
        self._data_address = self._data.start()
        self._door.start()
        self._trainers.rendezvous = await self._rendezvous.start(self._host)
        self._reports.start()
        self._health.start()
        staying = asyncio.get_running_loop().create_task(client.stay_connected())
        watching = asyncio.get_running_loop().create_task(self._watcher.run())
        looking = asyncio.get_running_loop().create_task(self._look_at_lease())
        try:
            either: list[asyncio.Future[Any]] = [staying, watching, self._outcome]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            for task in (staying, watching):
                if task.done():
                    task.result()  # it never returns, so this raises what went wrong
            return self._outcome.result()
        finally:
            watching.cancel()
            looking.cancel()
            staying.cancel()
            await self._close(client)

    async def _look_at_lease(self) -> None:
        """A machine that another job has taken while this one did not need it is a spare of this job no more."""
        while self._lease is not None:
            await asyncio.sleep(_LEASE_LOOK_S)
            if not self._lease.is_held and (owner := self._lease.find_owner()) is not None:
                self._feed(LeasedElsewhere(owner=owner))

    def _take_lease(self) -> None:
        assert self._lease is not None
        owner = self._lease.take()
        outlive_parent(owner is None)  # a pool host that dies must not end a node that trains
        answer = LeaseTaken() if owner is None else LeasedElsewhere(owner=owner)
        asyncio.get_running_loop().call_soon(self._feed, answer)

    def _release_lease(self) -> None:
        assert self._lease is not None
        self._lease.release()
        outlive_parent(False)
        if os.getppid() != self._parent:
            self.leave("the pool host of its machine is gone")

    async def _connect_first(self, client: CoordinatorClient, patience_s: float) -> bool:
        """Returns False if this process was told to stop before any coordinator answered."""
        connecting = asyncio.ensure_future(client.connect_first(patience_s))
        either: list[asyncio.Future[Any]] = [connecting, self._outcome]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not connecting.done():
            connecting.cancel()
            return False
        await connecting
        return True

    def _join(self) -> Join:
        assert self._data_address is not None
        return Join(
            node=self.node,
            incarnation=self._incarnation,
            data=self._data_address,
            spare=self._spare,
            rack=self._rack,
            footing=self._core.footing,
        )

    def stop(self, reason: str) -> None:
        self._feed(StopAsked(reason=reason))

    def leave(self, reason: str) -> None:
        owner = self._lease.find_owner() if self._lease is not None and not self._lease.is_held else None
        if owner is not None:
            self._feed(LeasedElsewhere(owner=owner))
            return
        self._feed(LeaveAsked(reason=reason))

    async def _close(self, client: CoordinatorClient) -> None:
        self._driver.stop()
        self._reports.begin_close()
        for probing in self._probing:
            probing.cancel()
        self._parked.stop()
        await self._trainers.close()
        await self._parked.close()
        self._door.close()
        await self._rendezvous.close()
        await asyncio.to_thread(self._health.close)
        await asyncio.to_thread(self._data.close)
        await asyncio.to_thread(self._reports.close)
        await self._examination.close()
        await client.close()
        if self._lease is not None:
            self._lease.close()

    # --- inputs ------------------------------------------------------------------------------------------------------

    def _on_request(self, request: Examine | Injection) -> None:
        """What a coordinator asks for beside its term's orders."""
        match request:
            case Examine():
                self._examination.begin(request)
            case Injection():
                self._injections.order(request)
            case _:
                assert_never(request)

    def _on_trainer_message(self, end: AgentEnd, message: Message) -> None:
        if isinstance(message, TrainerHello):
            self._ends[message.trainer] = end
        if isinstance(message, Injected):
            self._injections.on_injected(message)
            return
        name = next((name for name, known in self._ends.items() if known is end), None)
        if name is not None and is_from_trainer(message):
            self._reports.metrics.on_trainer_message(name, message)
            self._feed(FromTrainer(trainer=name, message=message))

    def _on_trainer_disconnected(self, end: AgentEnd) -> None:
        """Nothing more follows from it here: the exit of the process is reported by the fork server."""
        self._ends = {name: known for name, known in self._ends.items() if known is not end}

    def _on_trainer_exited(self, name: str, code: int, reason: str) -> None:
        if name in self._ends:
            self._ends[name].read_remaining()
        self._feed(TrainerExited(trainer=name, code=code, reason=reason))

    def _on_activity(self, name: str, activity: Activity) -> None:
        self._feed(TrainerActivity(trainer=name, activity=activity))

    def _feed(self, input: AgentInput) -> None:
        match input:
            case FromCoordinator(message=Welcome(settings=settings)):
                self._data.use(settings)
            case FromCoordinator(message=Fence(cause=cause)):
                self._trainers.mark_fault(cause)
            case _:
                pass
        self._driver.feed(input)

    # --- effects -----------------------------------------------------------------------------------------------------

    def _perform(self, effect: AgentEffect) -> None:
        if isinstance(effect, CutStreams):
            self._rendezvous.clear()
        match effect:
            case ToCoordinator(message=message):
                self._reports.send(message)
            case LookElsewhere():
                if self._client is not None:
                    self._client.disconnect()
            case ToTrainer(trainer=name, message=message, segment=segment):
                self._to_trainer(name, message, segment)
                if isinstance(message, Seat):
                    self._injections.seated(name, message.rank)
                    self._trainers.mark_seat(name, message.rank, message.cause)
            case StartTrainer(trainer=name):
                self._trainers.start(name)
            case ImportModules(modules=modules):
                self._trainers.import_modules(modules)
            case KillTrainer(trainer=name):
                self._signal_trainer(name, signal.SIGKILL)
            case TakeLease():
                self._take_lease()
            case ReleaseLease():
                self._release_lease()
            case StartParkedWork(start=number):
                self._parked.start(number)
            case StopParkedWork():
                self._parked.stop()
            case ProbePeers():
                task = asyncio.get_running_loop().create_task(self._probe(effect))
                self._probing.add(task)
                task.add_done_callback(self._probing.discard)
            case Emit(event=event):
                self._reports.report(event)
            case Finish():
                if not self._outcome.done():
                    self._outcome.set_result(effect)
            case _:
                self._data.perform(effect)

    async def _probe(self, probe: ProbePeers) -> None:
        try:
            found = await asyncio.to_thread(unreachable, probe.peers)
        except OSError:
            return  # out of descriptors, say: this node has nothing to tell of the others
        self._feed(PeersProbed(number=probe.number, unreachable=found))

    def _to_trainer(self, name: str, message: ToTrainerMessage, segment: int | None = None) -> None:
        if name in self._ends:
            descriptor = self._data.descriptor(segment) if segment is not None else None
            self._ends[name].send(message, descriptor)

    def _signal_trainer(self, name: str, sig: int) -> None:
        self._trainers.signal(name, sig)

    def _on_health(self, sample: HealthSample) -> None:
        self._feed(HealthSampled(sample=sample))
        for measured in newly_parked(self._core.trainers, self._trainers.pids()):
            self._feed(measured)
        if sample.memory_bytes:
            self._feed(MemorySeen(total_bytes=sample.memory_bytes, available_bytes=sample.available_bytes))


def _from_thread(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    """A thread may outlive the loop by a moment."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(action)
