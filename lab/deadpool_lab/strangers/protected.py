"""Runs one script under DeadPool, with or without faults: which node or trainer is killed, and when, is drawn from a
seed. Dead nodes are replaced, and later faults wait for a recovery."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from deadpool.config.job_config import JobConfig
from deadpool.control.launch.launcher import LocalJob, running
from deadpool.control.launch.run_dir import RunDir
from deadpool.errors import DeadPoolError
from deadpool.protocol.causes import FaultKind
from deadpool_lab.chaos.status_view import StatusView, Tail, take_down, view_of
from deadpool_lab.chaos.surroundings.network import Loopback
from deadpool_lab.chaos.surroundings.processes import JobProcesses
from deadpool_lab.strangers.generate import Script
from deadpool_lab.strangers.kind import Kind
from deadpool_lab.strangers.records import NO_AUDIT, AuditResult, Verdict, audit_result, named_rules, read_ranks
from deadpool_lab.strangers.references import SharedProcesses

Ask = Callable[..., dict[str, Any]]  # takes a run folder, the name of a request, and its arguments

_POLL_S = 0.05
_STATUS_S = 0.2
_AUDIT_PACE_S = 0.4  # so that the few steps of a script are not over before a recovery was played
_LOSES_BATCHES = {"batch_before_step", "unprotected_loader"}
_REFUSALS = ("deadpool.errors.ConfigError", "deadpool.errors.StateError")
_TIMEOUTS = {
    "node_timeout_s": 4.0,
    "hang_timeout_s": 15.0,
    "unwind_timeout_s": 6.0,
    "connect_timeout_s": 20.0,
    "prepare_timeout_s": 40.0,
    "spare_wait_s": 40.0,
    "isolation_timeout_s": 40.0,
}

_IN_A_STEP = ("forward", "backward", "reduce", "optimizer", "between", "capture", "wire")
_KIND_STEPS = (6, 8)  # of the first fault


@dataclass(slots=True)
class ProtectedRun:
    script: Script
    path: Path
    folder: Path
    shared: SharedProcesses
    ask: Ask
    timeout_s: float
    injections: list[PlannedInjection] = field(default_factory=list)
    timeouts: Mapping[str, float] = field(default_factory=dict)  # other ones than the trials has
    code: int | None = None  # None: it did not end in time
    hit: int = 0
    missed: list[str] = field(default_factory=list)
    audited: bool = False  # a recovery is played early, as in every job

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def run(self) -> None:
        """Runs it to its end. If its time is over before, the job is ended, and what is known of it is kept."""
        job = self._job()
        processes = JobProcesses(job, Loopback(), random.Random(self.script.title))
        deadline = time.monotonic() + self.timeout_s
        with running(job):
            injector = _Injector(self, job, processes)
            while job.poll() is None and time.monotonic() < deadline and not self.shared.stopping.is_set():
                self._replace_dead(job, processes)
                injector.poll()
                time.sleep(_POLL_S)
            self.code = job.poll()
            if self.code is None and not self.shared.stopping.is_set():
                take_down(job, processes, injector.view, self.folder / "diagnosis")
        injector.count(self.events())

    def _job(self) -> LocalJob:
        injections, shape = self.injections, self.script.shape
        first = injections[0] if injections else None
        orders = [each.order for each in injections if each.at == "recovered"]
        config = JobConfig(
            nodes=shape.nodes,
            nproc_per_node=shape.per_node,
            spares=1 if injections else 0,
            holders=min(2, shape.nodes - 1) if injections else 1,
            overhead_budget=0.0,
            rehearse_recovery=self.audited,
            faults=tuple([first.order, *orders] if first and first.at else orders),
            **{**_TIMEOUTS, **self.timeouts},  # type: ignore[arg-type]
        ).checked()
        calm_s = _AUDIT_PACE_S if self.audited else 0.0
        pace_s = calm_s if not injections else (0.05 if len(injections) == 1 and injections[0].at else 0.15)
        arguments = ["--out", str(self.out), "--pace", str(pace_s)]
        return LocalJob(
            config,
            RunDir.create(self.folder / "run"),
            [str(self.path), *arguments],
            quiet=True,
            environment={"PYTHONFAULTHANDLER": "1", **self.script.environment},
            fork_server=self.shared.fork_server,
        )

    def _replace_dead(self, job: LocalJob, processes: JobProcesses) -> None:
        if self.injections and len(processes.alive()) < processes.size:
            processes.add()

    # --- what is known afterwards ------------------------------------------------------------------------------------

    def named(self) -> list[str]:
        """The rules that DeadPool named before the first fault."""
        return named_rules(self.events())

    def audit_result(self) -> AuditResult:
        return audit_result(self.events()) if self.audited else NO_AUDIT

    def was_hit(self) -> bool:
        """A script that fails by itself has faults too, but nobody injected them."""
        was_asked_for = bool(self.injections) or self.audit_result().verdict is not Verdict.NONE
        return was_asked_for and any(event["what"] == "fault" for event in self.events())

    def own_failures(self) -> list[str]:
        """Ranks that failed before the first injection, although they were replaced: no script fails by itself."""
        events = _before_first_injection(self.events())
        faults = [event for event in events if event["what"] == "fault" and event["kind"] == FaultKind.SCRIPT.value]
        return [f"a rank failed before any fault: {fault['reason']}" for fault in faults]

    def was_refused(self) -> bool:
        """Whether DeadPool ended it, in words, before any rank had done a step."""
        ranks = read_ranks(self.out, self.script.shape.world_size)
        return not any(rank.steps for rank in ranks) and any(error in self.output() for error in _REFUSALS)

    def hangs(self) -> list[str]:
        """No script hangs on purpose, so a fault without a lost rank is a defect. But ranks of a script that was named
        because it loses batches may disagree on how many steps there are, once they have redone some."""
        events = self.events()
        if _LOSES_BATCHES.intersection(self.named()):
            events = _before_first_injection(events)
        faults = [event for event in events if event["what"] == "fault" and not event["ranks"]]
        return [f"a fault without a loss: {event['reason']}" for event in faults]

    def was_hit_after_the_end(self) -> bool:
        """Whether a rank was killed after every rank had left its loop, when no rank can be replaced any more."""
        events = self.events()
        marks = [event["what"] for event in events if event["what"] in ("finished", "fault")]
        killed = any(event["what"] == "lost_after_release" for event in events)
        return marks[-1:] == ["finished"] and killed

    def output(self) -> str:
        """All output of the job and its trainers."""
        paths = [self.folder / "run" / "console.log", *sorted((self.folder / "run" / "logs").glob("*.log"))]
        return "\n".join(path.read_text(errors="replace") for path in paths if path.exists())

    def events(self) -> list[dict[str, Any]]:
        return list(Tail(self.folder / "run" / "events.jsonl").new())


class _Injector:
    """Carries out the injections that are not known from the start, one after the other."""

    def __init__(self, run: ProtectedRun, job: LocalJob, processes: JobProcesses) -> None:
        self._run, self._job, self._processes = run, job, processes
        first = run.injections[0] if run.injections else None
        self._first = first if first is not None and first.at else None  # ordered at the start, not injected yet
        known = [self._first, *(injection for injection in run.injections if injection.at == "recovered")]
        self._waiting = [injection for injection in run.injections if injection not in known]
        self._needed = int(self._first is not None)  # so many faults come before the next one
        self._tails = [Tail(run.out / f"rank{rank}.jsonl") for rank in range(run.script.shape.world_size)]
        self._newest = -1
        self._events = Tail(job.run_dir.events)
        self._faults, self._asked_at, self._due = 0, 0.0, 0.0
        self.view = StatusView(at=0.0)

    def poll(self) -> None:
        self._read()
        if not self._waiting or self._newest < 0 or self._faults < self._needed or not self._is_calm():
            return
        now = time.monotonic()
        self._due = self._due or now + self._waiting[0].delay_s
        if now >= self._due:
            self._due = 0.0
            self._needed = self._faults + 1
            self._carry_out(self._waiting.pop(0))

    def _read(self) -> None:
        for tail in self._tails:
            for record in tail.new():
                self._newest = max(self._newest, record.get("step", -1))
        for event in self._events.new():
            if event["what"] == "fault":
                self._faults += 1
                self._first = None
                self.view = StatusView(at=0.0)  # an older status says nothing any more
            elif event["what"] == "injection_missed":
                self._inject_anyway()

    def _inject_anyway(self) -> None:
        """The moment did not come in its step (a skipped batch has no optimizer step), so the fault is injected without
        it."""
        injection, self._first = self._first, None
        if injection is not None:
            self._needed = 0
            self._waiting.insert(0, dataclasses.replace(injection, at=None, step=None, delay_s=0.0))

    def _is_calm(self) -> bool:
        """A fault is injected only while all copies are complete and a spare is there."""
        if time.monotonic() - self._asked_at > _STATUS_S:
            self._asked_at = time.monotonic()
            with contextlib.suppress(DeadPoolError, OSError, KeyError):
                self.view = view_of(self._run.ask(self._job.run_dir, "status"), time.time())
        return self.view.phase == "running" and self.view.protected and bool(self.view.spares)

    def _carry_out(self, injection: PlannedInjection) -> None:
        target: dict[str, Any] = {"rank": injection.rank}
        if injection.whole_node:
            target = {"node": self.view.seats[injection.position]}
        if injection.stops:
            self._stop(self.view.seats[injection.position], injection.rank)
            return
        if injection.whole_node and injection.at is None:
            self._processes.kill_node(target["node"])
            return
        step = None if injection.at in (None, "recovered") else self._newest + (injection.step or 1)
        try:
            self._run.ask(self._job.run_dir, "kill", **target, at=injection.at, step=step)
        except (DeadPoolError, OSError) as error:
            self._run.missed.append(f"{injection}: {error}")

    def _stop(self, node: str, rank: int) -> None:
        """Stops a trainer, which looks like a hang: the job ends the process, and another one takes its rank."""
        pids = [each.pid for each in self.view.trainers.get(node, ()) if each.rank == rank]
        if not pids or not self._processes.is_part_of(node, pids[0]):
            self._run.missed.append(f"trainer of rank {rank} stopped: it was not there")
            return
        self._processes.stop(pids[0])

    def count(self, events: list[dict[str, Any]]) -> None:
        """Counts, after the end, which faults were injected."""
        run = self._run
        run.hit = sum(event["what"] == "fault" for event in events)
        run.missed += [f"{injection}: no time was left" for injection in self._waiting]
        missed = [event for event in events if event["what"] == "injection_missed"]
        run.missed += [f"{event['at']} of step {event.get('step')}" for event in missed]
        if run.injections and run.injections[0].at and not missed and not _came(events):
            run.missed.append(f"{run.injections[0]}: its moment never came; the faults were others")


def _came(events: list[dict[str, Any]]) -> bool:
    """Whether any fault was injected at its moment. On a busy machine a silent node may be taken for a lost one before,
    and its order with it."""
    return any(event["what"] == "injected" for event in events)


def _before_first_injection(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rank that ends for an audit is one too: others may fail by its loss."""
    return list(itertools.takewhile(lambda event: event["what"] not in ("injected", "audit_ends_rank"), events))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedInjection:
    """With `at` None the fault comes from outside, at any time. The first one is ordered when the job starts
    (`order`)."""

    whole_node: bool
    rank: int  # of the trainer, or on the node, that is hit
    position: int  # of that node
    at: str | None
    step: int | None  # of a later injection: so many steps after the newest completed one
    delay_s: float = 0.0
    stops: bool = False  # the trainer gets SIGSTOP, from outside

    @property
    def order(self) -> str:
        target = f"node=n{self.position}" if self.whole_node else f"rank={self.rank}"
        step = "" if self.step is None else f" step={self.step}"
        return f"at={self.at}{step} {target}"

    def __str__(self) -> str:
        target = f"node of rank {self.rank}" if self.whole_node else f"trainer of rank {self.rank}"
        if self.stops:
            return f"{target} stopped"
        when = "from outside" if self.at is None else f"at {self.at}"
        return f"{target} {when}" + ("" if self.step is None else f" of step {self.step}")


def draw_injections(script: Script) -> list[PlannedInjection]:
    if script.kind is not None:
        return _draw_for_kind(script, script.kind)
    rng = random.Random(f"injections {script.seed} {script.number}")
    count = rng.choices([1, 2, 3], [5, 3, 2])[0]
    first = _draw(rng, script, rng.randint(0, script.steps // 2))
    return [first, *(_draw_later(rng, script, first) for _ in range(count - 1))]


def _draw_for_kind(script: Script, kind: Kind) -> list[PlannedInjection]:
    """The first one comes when the script has done what it does later than at first, and after what may be said of it
    before any fault."""
    rng = random.Random(f"injections {kind.name} {script.seed} {script.number}")
    first = _draw_kind_injection(rng, script, kind, rng.randint(*_KIND_STEPS))
    injections = [first] if rng.random() < 0.7 else [first, _draw_kind_injection(rng, script, kind, rng.randint(1, 2))]
    if kind.stops and rng.random() < 0.5:
        injections.append(replace(first, whole_node=False, at=None, step=None, stops=True))
    return injections


def _draw_kind_injection(rng: random.Random, script: Script, kind: Kind, step: int) -> PlannedInjection:
    per_node, world_size = script.shape.per_node, script.shape.world_size
    ranks = {"any": range(world_size), "rank 0": range(1), "other nodes": range(per_node, world_size)}[kind.victims]
    rank = rng.choice(ranks)
    return PlannedInjection(
        whole_node=rng.random() < 0.6,
        rank=rank,
        position=rank // per_node,
        at=rng.choice(kind.moments),
        step=step,
        delay_s=rng.uniform(0.0, 0.4),
    )


def _draw(rng: random.Random, script: Script, step: int) -> PlannedInjection:
    moments = [*_IN_A_STEP, "clip"] if script.clips else list(_IN_A_STEP)
    at = rng.choice(moments) if rng.random() < 0.75 else None
    rank = rng.randrange(script.shape.world_size)
    if at in ("capture", "wire"):
        step = max(step, 1)
    return PlannedInjection(
        whole_node=rng.random() < 0.6,
        rank=rank,
        position=rank // script.shape.per_node,
        at=at,
        step=None if at is None else step,
        delay_s=rng.uniform(0.0, 0.4),
    )


def _draw_later(rng: random.Random, script: Script, first: PlannedInjection) -> PlannedInjection:
    """Right after a recovery a trainer, whose node still has its copy; a node only when copies are complete again."""
    if rng.random() < 0.3 and script.shape.nodes > 1:
        others = [rank for rank in range(script.shape.world_size) if rank // script.shape.per_node != first.position]
        rank = rng.choice(others)
        position = rank // script.shape.per_node
        return PlannedInjection(whole_node=False, rank=rank, position=position, at="recovered", step=None)
    return _draw(rng, script, rng.randint(1, 2))
