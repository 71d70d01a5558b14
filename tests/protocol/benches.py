"""Benches on which a transcript tries a core: each turns an input line into inputs, and keeps time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs
from notation import address, copies, copy, generation, geometry, lives, options, replicated, slot, version

from deadpool.protocol import effects as fx
from deadpool.protocol import inputs
from deadpool.protocol import messages as msg
from deadpool.protocol.agent.core import Agent
from deadpool.protocol.causes import AdaptiveBounds, Checkpoint, DurableSettings, FaultKind, Miss, Refusal
from deadpool.protocol.coordinator.core import Coordinator
from deadpool.protocol.coordinator.job import JobState, Phase
from deadpool.protocol.coordinator.leadership.leadership import Leadership
from deadpool.protocol.coordinator.outbox import CoordinatorConfig, Deadlines
from deadpool.protocol.health import HealthSample
from deadpool.protocol.identity import NO_GENERATION, Generation, Layout, Schedule, Version
from deadpool.protocol.quorum import Changes, Footing, Promise, Seated
from deadpool.protocol.schemes import NodeGroup, RankGroup, Scheme
from deadpool.protocol.seal import Digest
from deadpool.wire.codec import decode, encode

EVERY_STEP = Schedule()
GROUP = NodeGroup(positions=(0, 1, 2), parities=1)  # where copies are coded
DEADLINES = Deadlines(node_s=5, fence_s=10, prepare_s=60, connect_s=20, spare_wait_s=100, hang_s=0)


def settings(layout: Layout, slots: int, budget: float = 0.0) -> msg.Settings:
    return msg.Settings(layout=layout, slots=slots, heartbeat_s=1, unwind_s=4, overhead_budget=budget)


def job_state(layout: Layout, schedule: Schedule = EVERY_STEP) -> JobState:
    """For parts of the coordinator that are tried alone."""
    config = CoordinatorConfig(settings=settings(layout, slots=2), deadlines=DEADLINES, schedule=schedule)
    return JobState(config, term=1, name="")


def layout_of(named: dict[str, str]) -> Layout:
    return Layout(
        positions=int(named.get("nodes", 3)),
        per_node=int(named.get("per_node", 1)),
        holders=int(named.get("holders", 1)),
    )


class Bench:
    """`now` moves only when a transcript says so."""

    core: Any

    def __init__(self) -> None:
        self.now = 0.0

    def try_line(self, line: str) -> list[Any]:
        words = line.split()
        if words[0] == "wait":
            self.now += float(words[1])
            words = ["tick"]
        elif words[0] == "stalled":  # the core's own process did not run for so long
            self.now += float(words[1])
        effects = []
        for input in self.inputs(words):
            effects += self.core.step(input, now=self.now)
            self.core.check()
        due = self.core.deadline()
        if due is not None and due <= self.now and words != ["tick"]:
            effects += self.core.step(inputs.Tick(), now=self.now)  # as the driver does
        for effect in effects:
            if (message := getattr(effect, "message", None)) is not None:
                sent = msg.Order(term=1, message=message) if isinstance(effect, fx.ToAgent) else message
                assert decode(encode(sent)) == sent, "what a core sends has to arrive as it was"
            self.note(effect)
        return effects

    def note(self, effect: Any) -> None:
        """Called with every effect."""

    def inputs(self, words: list[str]) -> list[Any]:
        raise NotImplementedError


class CoordinatorBench(Bench):
    """Lines: `n0: sealed 0 v1@1.1`, `lost n1`, `wait 5`; `n0: @1.1 sealed ...` was said in that generation.
    `n0: heartbeat 0 step=7 step_s=0.5 stall_s=0.01 commit_s=0.2` tells of rank 0, at the present interval;
    `n0: works 0 0.4 of=0.5` says that it works 0.4 s of a step of 0.5 s; `n0: memory 100 40 60 30` that it has 100 GiB,
    40 of them left, that its arena takes 60, and that 30 of these are for copies of its own ranks."""

    def __init__(self, named: dict[str, str]) -> None:
        super().__init__()
        layout = layout_of(named)
        schedule = Schedule(every=int(named.get("every", 1)))
        node_s = float(named.get("node_timeout", DEADLINES.node_s))
        deadlines = replace(DEADLINES, hang_s=float(named.get("hang", 0)), node_s=node_s)
        told = settings(layout, int(named.get("slots", 2)), float(named.get("budget", 0)))
        told = structs.replace(told, replace_stragglers="replace" in named)
        told = structs.replace(told, isolation_s=float(named.get("isolation", told.isolation_s)))
        told = structs.replace(told, durable=_durable(named), adaptive=_adaptive(named))
        told = structs.replace(told, audit="audit" in named, on_inexact=named.get("inexact", "warn"))
        told = structs.replace(told, on_corruption=named.get("corruption", "stop"))
        told = structs.replace(told, audit_every=int(named.get("audits", 0)))
        told = structs.replace(told, audit_spares_every=int(named.get("judges", 0)))
        told = structs.replace(told, without_spare="shrink" if "shrink" in named else "wait")
        self.core: Any = self._make_core(named, told, deadlines, schedule)
        self._layout = layout
        self._plans: dict[str, msg.Plan] = {}  # the last one that each node was sent

    def note(self, effect: Any) -> None:
        if isinstance(effect, fx.ToAgent) and isinstance(effect.message, msg.Plan):
            self._plans[effect.node] = effect.message

    def _make_core(self, named: dict[str, str], told: msg.Settings, deadlines: Deadlines, schedule: Schedule) -> Any:
        scheme = Scheme.parse(named["protect"]) if "protect" in named else None
        return Coordinator(CoordinatorConfig(settings=told, deadlines=deadlines, schedule=schedule, scheme=scheme))

    def inputs(self, words: list[str]) -> list[Any]:
        match words:
            case ["tick"]:
                return [inputs.Tick()]
            case ["stop"]:
                return [inputs.StopAsked(reason="asked to")]
            case ["drain", node]:
                return [inputs.DrainAsked(node=node, reason="asked to")]
            case ["protect", scheme]:
                return [inputs.SchemeAsked(scheme=Scheme.parse(scheme) if scheme != "auto" else None)]
            case ["checkpoint-asked"]:
                return [inputs.CheckpointAsked()]
            case ["audit-asked"]:
                return [inputs.AuditAsked()]
            case ["step-audit-asked"]:
                return [inputs.StepAuditAsked()]
            case ["checkpoint-found", name, number]:
                return [inputs.CheckpointFound(checkpoint=self._checkpoint(name, int(number)))]
            case ["lost", node]:
                return [inputs.LinkLost(node=node, reason="closed")]
            case ["stalled", seconds]:
                return [inputs.Stalled(seconds=float(seconds))]
            case ["everybody", *rest]:
                return [i for seat in enumerate(self.coordinator.seats) for i in self._of_seat(*seat, rest)]
            case [node, *rest]:
                name = node.rstrip(":")
                return [inputs.FromAgent(node=name, message=self._message(name, rest))]
        raise ValueError(words)

    def _checkpoint(self, name: str, number: int) -> Checkpoint:
        ranks = range(self._layout.world_size)
        found = tuple(copy(f"{rank}:v{number}@7.7") for rank in ranks)
        return Checkpoint(name=name, number=number, copies=found, recordings=tuple(b"\x01b" for _ in ranks))

    def _of_seat(self, position: int, node: str, words: list[str]) -> list[Any]:
        """`everybody connected`: with all ranks of each seat. `everybody has v1@1.1`: sealed, and stored where held."""
        layout = self._layout
        own = list(layout.ranks_at(position))
        if words[0] == "votes":
            return self._votes(node, own, words[1], words[2], *words[3:])
        if words[0] in ("prepared", "connected"):
            said = [[words[0], ",".join(map(str, own)), *words[1:]]]
        elif words[0] == "heartbeat" and any("=" in word for word in words):  # with what captures cost
            said = [["heartbeat", *map(str, own), *words[1:]]]
        elif words[0] == "heartbeat":
            said = [[words[0], *(f"{rank}:{step}" for rank in own for step in words[1:])]]
        elif words[0] == "has":
            held = [r for p in self.coordinator.commits.placement.held_by(position) for r in layout.ranks_at(p)]
            kept = [["stored", str(r), words[1]] for r in held]
            if self.coordinator.commits.placement.groups:
                kept = [["encoded", ",".join(map(str, held)), words[1]]]
            said = [["sealed", str(r), words[1]] for r in own] + kept
        else:
            said = [[words[0], str(rank), *words[1:]] for rank in own]
        return [inputs.FromAgent(node=node, message=self._message(node, line)) for line in said]

    def _votes(self, node: str, own: list[int], name: str, said: str, apart: str = "1") -> list[Any]:
        """`everybody votes v4@1.1 7,7,8`: as `has`, with the digest of each rank's replicated part. With a number
        behind it so many ranks hold all shards, and the next ones hold the same."""
        layout, step = self._layout, int(apart)
        digests = [int(digest) for digest in said.split(",")]
        peers = {rank: ",".join(map(str, range(rank % step, layout.world_size, step))) for rank in own}
        sealed = [["sealed", str(r), name, f"replica={digests[r]}", f"peers={peers[r]}"] for r in own]
        held = [
            r
            for p in self.coordinator.commits.placement.held_by(layout.position_of(own[0]))
            for r in layout.ranks_at(p)
        ]
        kept = [["stored", str(r), name] for r in held]
        if self.coordinator.commits.placement.groups:
            kept = [["encoded", ",".join(map(str, held)), name]]
        return [inputs.FromAgent(node=node, message=self._message(node, line)) for line in (*sealed, *kept)]

    @property
    def coordinator(self) -> Coordinator:
        return self.core

    def _message(self, node: str, words: list[str]) -> Any:
        now_in: Generation = self.coordinator.generation
        if words[0].startswith("@"):
            now_in, words = generation(words[0][1:]), words[1:]
        plain, named = options(words)
        match plain:
            case ["join", *spare]:
                footing, rack = _footing(named), named.get("rack")
                joined = msg.Join(node="?", incarnation="1", data=address("?"), spare=bool(spare), rack=rack)
                return structs.replace(joined, footing=footing)
            case ["parting"]:
                return msg.Disconnecting()
            case ["report", term]:
                return _takeover_report(int(term), named)
            case ["heartbeat", *ranks] if "step" in named:
                return self._heartbeat(now_in, [int(rank) for rank in ranks], named)
            case ["heartbeat", *steps]:
                return msg.Heartbeat(generation=now_in, steps=_steps(steps), paused=_by_rank(named.get("paused")))
            case ["signs", *signs]:
                return msg.Health(signs=tuple(map(_sign, signs)))
            case ["memory", *figures]:
                total, available, taken, own = (int(figure) << 30 for figure in figures)
                facts = {"memory_bytes": total, "available_bytes": available, "copies_bytes": taken, "own_bytes": own}
                return msg.Health(signs=(), **facts)
            case ["trainers", *infos]:
                return msg.Trainers(trainers=tuple(_info(word) for word in infos))
            case ["trainer-lost", "none", *reason]:
                return msg.TrainerLost(generation=None, trainer="t", rank=None, reason=" ".join(reason))
            case ["copy-lost", rank, *reason]:
                return _lost(now_in, "", int(rank), reason, named)
            case ["trainer-lost", rank, *reason]:
                return _lost(now_in, "t", int(rank), reason, named)
            case ["stopped", rank, *reason]:
                return structs.replace(_lost(now_in, "t", int(rank), reason, named), kind=FaultKind.INEXACT)
            case ["sealed", rank, name] if "replica" in named:
                peers = tuple(int(peer) for peer in named["peers"].split(","))
                return msg.Sealed(generation=now_in, copy=replicated(f"{rank}:{name}", int(named["replica"]), peers))
            case ["sealed", rank, name]:
                return msg.Sealed(generation=now_in, copy=copy(f"{rank}:{name}"))
            case ["stored", rank, name]:
                return msg.Stored(generation=now_in, rank=int(rank), version=version(name), bytes_received=1)
            case ["encoded", names, name]:
                ranks = tuple(int(rank) for rank in names.split(","))
                return msg.Encoded(generation=now_in, version=version(name), ranks=ranks, bytes_received=1)
            case ["missed", rank, number]:
                return _missed(now_in, int(rank), int(number), named)
            case ["fence-ack"]:
                inventory, hung = _inventory(named), _by_rank(named.get("hung"))
                planned = self._plans[node].generation if node in self._plans else None
                return msg.FenceAck(generation=now_in, inventory=inventory, hung=hung, planned=planned)
            case ["standing", rank, number]:
                return msg.Standing(generation=now_in, rank=int(rank), number=int(number))
            case ["probed", number, *nodes]:
                return msg.Probed(generation=now_in, number=int(number), unreachable=tuple(nodes))
            case ["unavailable", holder]:
                return msg.Unavailable(reason=f"its machine is leased to {holder}")
            case ["leave"]:
                return msg.Leave(reason="its agent got SIGTERM")
            case ["works", rank, own_s]:
                work = msg.WorkTime(rank=int(rank), step_s=float(named["of"]), own_s=float(own_s))
                return msg.Heartbeat(generation=now_in, steps=((int(rank), 1),), work_times=(work,))
            case ["prepared", names]:
                ranks = tuple(int(rank) for rank in names.split(","))
                agreements = tuple(named.get("agreement", "").split(","))
                named_rank = self._plans[node].store_rank if node in self._plans else None
                store = address(f"r{named_rank}") if named_rank in ranks else None
                return msg.NodePrepared(generation=now_in, ranks=ranks, store=store, agreements=agreements)
            case ["recordings", rank, *complete]:
                return recordings(int(rank), complete)
            case ["connected", names]:
                return msg.NodeConnected(generation=now_in, ranks=tuple(int(rank) for rank in names.split(",")))
            case ["finished", rank]:
                return msg.Finished(generation=now_in, rank=int(rank))
            case ["salvaged", ranks, *failure]:
                names, failed = tuple(int(rank) for rank in ranks.split(",") if rank != "-"), " ".join(failure)
                return msg.Salvaged(generation=now_in, ranks=names, folder="/kept", failure=failed)
            case ["durable", step, path]:
                return msg.Durable(step=int(step), path=path)
            case ["part", name, ranks] if ranks != "-":
                written = copies(ranks)
                return msg.CheckpointPart(name=name, copies=written, bytes_written=100 * len(written))
            case ["part", name, "-", *failure]:
                return msg.CheckpointPart(name=name, copies=(), bytes_written=0, failure=" ".join(failure))
            case ["done", name, *failure]:
                return msg.CheckpointDone(name=name, bytes_written=300, failure=" ".join(failure))
            case ["damaged" | "dropped" as what, lost_at, name]:
                wanted = copy(name).seal
                lost = msg.CopyLost(generation=now_in, node=lost_at, rank=wanted.rank, version=wanted.version)
                return structs.replace(lost, dropped=what == "dropped")
            case ["ended", rank, code]:
                return msg.Ended(generation=now_in, rank=int(rank), code=int(code))
            case ["computed", rank, number, "late"]:
                return msg.StepDigests(generation=now_in, rank=int(rank), number=int(number), late=True)
            case ["computed", rank, number, stages, *mixed]:
                before, gradients, reduced, after = map(int, stages.split(","))
                return msg.StepDigests(
                    generation=now_in,
                    rank=int(rank),
                    number=int(number),
                    before=before,
                    gradients=gradients,
                    reduced=reduced,
                    after=after,
                    apart=not mixed,
                )
            case ["irreplaceable", rank, number]:
                return msg.Digested(generation=now_in, rank=int(rank), number=int(number), parts=(), irreplaceable=True)
            case ["digested", rank, number, *parts]:
                return msg.Digested(generation=now_in, rank=int(rank), number=int(number), **_digests(parts))
        raise ValueError(words)

    def _heartbeat(self, now_in: Generation, ranks: list[int], named: dict[str, str]) -> msg.Heartbeat:
        every = int(named.get("every", self.coordinator.commits.timetable.newest.every))
        told = {name: float(named[name]) if name in named else None for name in ("stall_s", "commit_s")}
        step_s = float(named.get("step_s", 1))
        return msg.Heartbeat(
            generation=now_in,
            steps=tuple((rank, int(named["step"])) for rank in ranks),
            costs=tuple(msg.CaptureCostReport(rank=rank, every=every, step_s=step_s, **told) for rank in ranks),
        )


class LeadershipBench(CoordinatorBench):
    """As of a coordinator; and `n0: join position=0 in=1.3 promised=1:c0`, where `gone=1.2` (0.0: it
    was never told Go) and `fenced=1.4` say what differs, and `changed=1.2:0,3` what its plan changed since then;
    `n0: report 2` with the same words, and `permit=v4@1.1,5 own=... held=... holders=n1`.
    A core that `succeeds` was not the first one of its job; `standbys` are the others there are."""

    def _make_core(self, named: dict[str, str], told: msg.Settings, deadlines: Deadlines, schedule: Schedule) -> Any:
        places = [address(f"c{index}") for index in range(1 + int(named.get("standbys", 0)))]
        told = structs.replace(told, coordinators=tuple(places))
        config = CoordinatorConfig(settings=told, deadlines=deadlines, schedule=schedule)
        return Leadership(config, name="c1", founds="succeeds" not in named)

    @property
    def coordinator(self) -> Coordinator:
        coordinator: Coordinator = self.core.coordinator
        return coordinator


def _durable(named: dict[str, str]) -> DurableSettings | None:
    """`durable=60` seconds or `durable=3steps`."""
    word = named.get("durable")
    if word is None:
        return None
    steps = int(word.removesuffix("steps")) if word.endswith("steps") else 0
    every_s = 0.0 if steps else float(word)
    return DurableSettings(where="/durable", job="j", every_s=every_s, every_steps=steps, timeout_s=100)


def _adaptive(named: dict[str, str]) -> AdaptiveBounds | None:
    """`adaptive=2` allows two copies, `coded=rs(2,1)` parity; `evict=ill`; `dwell=60` seconds."""
    if "adaptive" not in named:
        return None
    most, dwell_s = int(named["adaptive"]), float(named.get("dwell", 600))
    coded = Scheme.parse(named["coded"]) if "coded" in named else None
    return AdaptiveBounds(copies_at_most=most, evict_ill="evict" in named, dwell_s=dwell_s, in_groups=coded)


def _digests(words: list[str]) -> dict[str, Any]:
    """Before the parts there may stand "unmoved", and "by:" with the rule that a guard has named."""
    named = [word.removeprefix("by:") for word in words if word.startswith("by:")]
    parts = [word for word in words if word != "unmoved" and not word.startswith("by:")]
    return {"parts": _parts(parts), "moved": "unmoved" not in words, "named": tuple(named)}


def _parts(words: list[str]) -> tuple[msg.Part, ...]:
    """`parameter:w:7`: kind, name, digest; `floats:timer:7?` decides nothing."""
    split = [(word.rstrip("?").split(":"), not word.endswith("?")) for word in words]
    return tuple(
        msg.Part(kind=kind, name=name, digest=int(digest), decides=decides)  # type: ignore[arg-type]
        for (kind, name, digest), decides in split
    )


def _sign(word: str) -> msg.Sign:
    """`correctable:2:3`: kind, grade, count."""
    kind, grade, count = word.split(":")
    return msg.Sign(kind=kind, grade=int(grade), count=int(count))


def _footing(named: dict[str, str]) -> Footing:
    term, _, to = named.get("promised", "0:").partition(":")
    promise = Promise(term=int(term), to=to)
    if "in" not in named:
        return Footing(promise=promise)
    planned = generation(named["in"])
    position = int(named["position"]) if "position" in named else None
    electorate = generation(named["gone"]) if "gone" in named else planned
    newest = generation(named["fenced"]) if "fenced" in named else planned
    return Footing(
        promise=promise,
        generation=newest,
        planned=planned,
        position=position,
        electorate=electorate,
        vote=position if electorate != NO_GENERATION else None,
        newer=_newer(planned, position, named) if electorate != planned and position is not None else (),
    )


def _newer(planned: Generation, position: int, named: dict[str, str]) -> tuple[Seated, ...]:
    since, _, changed = named.get("changed", "0.0:").partition(":")
    moved = tuple(int(word) for word in changed.split(",") if word)
    return (Seated(generation=planned, position=position, changes=Changes(since=generation(since), positions=moved)),)


def _takeover_report(term: int, named: dict[str, str]) -> msg.TakeoverReport:
    footing = _footing(named)
    watermark, _, keep_from = named.get("permit", "").partition(",")
    schedule = Schedule(every=int(named.get("every", 1)))
    return msg.TakeoverReport(
        term=term,
        footing=footing,
        running="fenced" not in named and "gone" not in named,
        resume=version(named["resume"]) if "resume" in named else None,
        permit=msg.Permit(
            generation=footing.planned,
            watermark=version(watermark) if watermark else None,
            keep_from=int(keep_from or 0),
            schedule=schedule,
        ),
        schedules=(schedule,),
        holders=tuple(named.get("holders", "").split(",")),
        scheme=Scheme.parse(named.get("scheme", f"copies={len(named.get('holders', '').split(','))}")),
        group=GROUP if "scheme" in named else None,
        inventory=_inventory(named),
        trainers=(),
        missed=tuple(int(word) for word in named.get("missed", "").split(",") if word),
        finished=tuple(int(word) for word in named.get("finished", "").split(",") if word),
        ended=tuple((int(rank), int(code)) for rank, code in _by_rank(named.get("ended"))),
        lost=_lost_by_rank(footing.planned, named.get("lost")),
    )


def _missed(now_in: Generation, rank: int, number: int, named: dict[str, str]) -> msg.Missed:
    stall_s = float(named["stall_s"]) if "stall_s" in named else None
    cause = Miss.NO_SLOT if stall_s is None else Miss.TOO_SLOW
    reason = "no free slot" if stall_s is None else "late"
    return msg.Missed(generation=now_in, rank=rank, number=number, cause=cause, reason=reason, stall_s=stall_s)


def _lost(now_in: Generation, trainer: str, rank: int, words: list[str], named: dict[str, str]) -> msg.TrainerLost:
    """The kind of the fault is written as the beginning of its reason; `unread=` names what no source gave."""
    reason = " ".join(words)
    kind = _KINDS.get(reason.partition(":")[0].partition(" ")[0], FaultKind.TRAINER)
    unread = version(named["unread"]) if "unread" in named else None
    kept = words[1].rstrip(":") if kind is FaultKind.UNREAD and words[0] == "checkpoint" else ""
    return msg.TrainerLost(
        generation=now_in, trainer=trainer, rank=rank, reason=reason, kind=kind, unread=unread, fallback=kept
    )


_KINDS = {
    "script": FaultKind.SCRIPT,
    "device": FaultKind.DEVICE,
    "no": FaultKind.UNREAD,
    "checkpoint": FaultKind.UNREAD,
}


def _refusal(reason: str) -> Refusal | None:
    return Refusal(reason.removeprefix("refused: ")) if reason.startswith("refused: ") else None


def _lost_by_rank(now_in: Generation, word: str | None) -> tuple[msg.TrainerLost, ...]:
    """1:killed"""
    return tuple(_lost(now_in, "", rank, [reason], {}) for rank, reason in _by_rank(word))


def _inventory(named: dict[str, str]) -> msg.Inventory:
    live, own, held = (named.get(kind, "") for kind in ("live", "own", "held"))
    return msg.Inventory(
        live=msg.Lives.of(lives(live)), own=msg.NodeCopies.of(copies(own)), held=msg.NodeCopies.of(copies(held))
    )


def _steps(words: list[str]) -> tuple[tuple[int, int], ...]:
    return tuple((int(rank), int(step)) for rank, step in (word.split(":") for word in words))


def _by_rank(word: str | None) -> tuple[tuple[int, str], ...]:
    """1:evaluation"""
    return tuple((int(rank), reason) for rank, reason in [word.split(":")]) if word else ()


def _info(word: str) -> msg.TrainerInfo:
    """n0.0:seated:0, or n0.0:seated:0:3 for a rank of three that asks for its shares of a step."""
    name, state, *rank = word.split(":")
    found = msg.TrainerInfo(trainer=name, state=state, rank=int(rank[0]) if rank else None)
    if len(rank) < 2:
        return found
    own = int(rank[0])
    return structs.replace(found, shares=msg.Shares(replicas=(0, int(rank[1]), 1), block=(own, own + 1, 1)))


def recordings(rank: int, complete: list[str]) -> msg.Recording:
    return msg.Recording(rank=rank, start=Generation(1, 1), complete=bool(complete), book=b"\x90")


@dataclass(frozen=True, slots=True)
class _Said:
    """By the coordinator."""

    message: Any


class AgentBench(Bench):
    """Lines: `plan 1.1`, `fence 1.2`, `n0.0: captured v1@1.1 1/0`, `hashed 1/0`, `exited n0.0 -9`,
    `kernel n0.0 stopped`, `sampled correctable=50 hot=1.0` (errors so far, and a gauge, which has a point; also
    `memory=1000 left=400` bytes),
    `n0.0: stepped 4 step_s=0.5 stall_s=0.01 copy_s=0.1`. `by-2 permit ...` is said in term 2, else in the one promised;
    `memory 1000 400` (bytes in all and left, by which slots grow where the core has `slots=0`);
    `welcome 2 c1` asks for term 2. With `coded`, `plan 1.2 ... parities=2` changes the group of this node, and
    `damaged 0:v1@1.1 parities=2` tells of the parity that it keeps for that group."""

    def __init__(self, named: dict[str, str]) -> None:
        super().__init__()
        standby, shared, works = int(named.get("standby", 0)), "shared" in named, "works" in named
        self.core: Agent = Agent(node="n0", standby=standby, spare=shared or works, shared=shared, works=works)
        self._layout = layout_of(named)
        self._slots = int(named.get("slots", 2))
        self._group = GROUP if "coded" in named else None
        self._adaptive = _adaptive({name: named[name] for name in named if name == "adaptive"})

    def inputs(self, words: list[str]) -> list[Any]:
        term = self.core.footing.promise.term
        if words[0].startswith("by-"):
            term, words = int(words[0][3:]), words[1:]
        return [
            inputs.FromCoordinator(term=term, message=input.message) if isinstance(input, _Said) else input
            for input in self._news(words)
        ]

    def _news(self, words: list[str]) -> list[Any]:
        plain, named = options(words)
        match plain:
            case ["tick"]:
                return [inputs.Tick()]
            case ["welcome", *asked]:
                term, by = (int(asked[0]), asked[1]) if asked else (1, "")
                told = structs.replace(settings(self._layout, self._slots), adaptive=self._adaptive)
                return [_Said(msg.Welcome(term=term, settings=told, by=by))]
            case ["found"]:
                return [inputs.CoordinatorFound()]
            case [trainer, "waits", *what] if trainer.endswith(":"):
                return [inputs.FromTrainer(trainer=trainer[:-1], message=msg.Waits(what="".join(what)))]
            case ["kernel", trainer, activity]:
                return [inputs.TrainerActivity(trainer=trainer, activity=inputs.Activity(activity))]
            case ["sampled"]:
                counted = {kind: int(count) for kind, count in named.items() if "." not in count}
                high = {kind: float(value) for kind, value in named.items() if "." in value}
                memory = {"memory_bytes": counted.pop("memory", 0), "available_bytes": counted.pop("left", 0)}
                return [inputs.HealthSampled(sample=HealthSample(counters=counted, gauges=high, **memory))]
            case ["memory", total, left]:
                return [inputs.MemorySeen(total_bytes=int(total), available_bytes=int(left))]
            case ["coordinator-lost"]:
                return [inputs.CoordinatorLost(reason="closed")]
            case ["stalled", seconds]:
                return [inputs.Stalled(seconds=float(seconds))]
            case ["pulse"]:
                return [_Said(msg.Alive())]
            case ["fence", name]:
                return [_Said(msg.Fence(generation=generation(name), cause="fault"))]
            case ["connect", name]:
                return [_Said(msg.Connect(generation=generation(name), store=address("r0")))]
            case ["plan", name]:
                return [_Said(self._plan(generation(name), named))]
            case ["go", name]:
                return [_Said(msg.Go(generation=generation(name), cause="fault"))]
            case ["recordings", rank, *complete]:
                return [_Said(recordings(int(rank), complete))]
            case ["rehearse", name, rank]:
                return [_Said(msg.Rehearse(generation=self.core.generation, trainer=name, rank=int(rank)))]
            case ["permit", name, number]:
                schedule = Schedule(every=int(named.get("every", 1)), start=int(named.get("from", 0)))
                return [_Said(self._permit(self.core.generation, version(name), int(number), schedule))]
            case ["dismiss", name]:
                return [_Said(structs.replace(self._plan(generation(name), named), orders=(), holders=(), held=()))]
            case ["salvage", name, ranks]:
                wanted = tuple(int(rank) for rank in ranks.split(","))
                return [_Said(msg.Salvage(generation=self.core.generation, version=version(name), ranks=wanted))]
            case ["damaged", name]:
                seal = copy(name).seal
                node = named.get("at", "n0")
                group = self._coding_group(seal.rank, named) if "parities" in named else None
                now_in, wanted = self.core.generation, seal.version
                return [_Said(msg.CopyLost(generation=now_in, node=node, rank=seal.rank, version=wanted, group=group))]
            case ["probe", number, *nodes]:
                peers = tuple(msg.Peer(node=node, address=address(node)) for node in nodes)
                return [_Said(msg.Probe(generation=self.core.generation, number=int(number), peers=peers))]
            case ["probed", number, *nodes]:
                return [inputs.PeersProbed(number=int(number), unreachable=tuple(nodes))]
            case ["write-checkpoint", name, wanted]:
                order = msg.WriteCheckpoint(generation=self.core.generation, name=name, version=version(wanted))
                return [_Said(order)]
            case ["abandon-checkpoint", name]:
                return [_Said(msg.AbandonCheckpoint(name=name))]
            case ["audit", number, rank]:
                return [_Said(msg.Audit(generation=self.core.generation, number=int(number), rank=int(rank)))]
            case ["audit-over"]:
                return [_Said(msg.AuditOver(generation=self.core.generation))]
            case ["stand", number]:
                return [_Said(msg.Stand(generation=self.core.generation, number=int(number)))]
            case ["proceed"]:
                return [_Said(msg.Proceed(generation=self.core.generation))]
            case ["shutdown"]:
                return [_Said(msg.Shutdown(reason="node n0 leaves: asked to", failed=False))]
            case ["needed"]:
                return [_Said(msg.Needed(generation=self.core.generation))]
            case ["lease-taken"]:
                return [inputs.LeaseTaken()]
            case ["leased-to", owner]:
                return [inputs.LeasedElsewhere(owner=owner)]
            case ["work-ended", code]:
                took = {"took_s": float(named.get("took", 0)), "killed": int(named.get("killed", 0))}
                return [inputs.ParkedWorkEnded(code=int(code), **took)]  # type: ignore[arg-type]
            case ["leave"]:
                return [inputs.LeaveAsked(reason="its agent got SIGTERM")]
            case ["release"]:
                return [_Said(msg.Release(generation=self.core.generation))]
            case ["exited", name, code]:
                return [inputs.TrainerExited(trainer=name, code=int(code), reason=f"exit code {code}")]
            case [name, *_] if name.endswith(":"):
                return [inputs.FromTrainer(trainer=name.rstrip(":"), message=self._said(name.rstrip(":"), words[1:]))]
        return [self._data_news(plain, named)]

    def _data_news(self, plain: list[str], named: dict[str, str]) -> Any:
        match plain:
            case ["allocated", segment]:
                return inputs.Allocated(segment=int(segment))
            case ["hashed", ref]:
                return inputs.Hashed(slot=slot(ref), digest=Digest(record=0, unique=0, replica=0))
            case ["cut", name]:
                return inputs.StreamsCut(generation=generation(name))
            case ["pushed", name, node]:
                wanted = copy(name).seal
                seconds = float(named.get("seconds", 0))
                return inputs.Pushed(rank=wanted.rank, version=wanted.version, node=node, seconds=seconds)
            case ["push-failed", name, node, *reason]:
                wanted = copy(name).seal
                why = " ".join(reason)
                return inputs.PushFailed(
                    rank=wanted.rank, version=wanted.version, node=node, refusal=_refusal(why), reason=why
                )
            case ["fetched", name, ref]:
                return inputs.Fetched(rank=copy(name).seal.rank, slot=slot(ref), copy=copy(name))
            case ["fetch-failed", rank, ref]:
                return inputs.FetchFailed(rank=int(rank), slot=slot(ref), reason="nobody answers")
            case ["source-damaged", node, name]:
                wanted = copy(name).seal
                return inputs.SourceDamaged(node=node, rank=wanted.rank, version=wanted.version)
            case ["staged", name, ref]:
                return inputs.Staged(name=name, slots=(slot(ref),))
            case ["part-written", name, *failure]:
                return inputs.PartWritten(name=name, bytes_written=100, failure=" ".join(failure))
            case ["written-out", ranks]:
                return inputs.WrittenOut(ranks=tuple(int(rank) for rank in ranks.split(",")), folder="/kept")
            case ["offered", number, name]:
                in_generation = generation(named["in"]) if "in" in named else self.core.generation
                group = self._coding_group(copy(name).seal.rank, named) if self._group is not None else None
                wanted = copy(name, int(named.get("size", 100)))
                return inputs.Offered(offer=int(number), generation=in_generation, copy=wanted, group=group)
            case ["received", name, ref]:
                return inputs.Received(slot=slot(ref), copy=copy(name), bytes_received=1)
        raise ValueError(plain)

    def _coding_group(self, rank: int, named: dict[str, str]) -> RankGroup:
        assert self._group is not None
        parities = int(named.get("parities", self._group.parities))
        return structs.replace(self._group, parities=parities).of(rank, self._layout)

    def _said(self, name: str, words: list[str]) -> Any:
        now_in = self.core.generation
        trainer = self.core.trainers.by_name[name]
        plain, named = options(words)
        match plain:
            case ["hello"]:
                return msg.TrainerHello(trainer=name, pid=1, store=address(name))
            case ["digested", number, *parts]:
                return msg.Digested(generation=now_in, rank=trainer.rank or 0, number=int(number), **_digests(parts))
            case ["declare", size]:
                return msg.Declare(geometry=geometry(int(size)), peers=())
            case ["captured", wanted, ref]:
                return msg.Captured(generation=now_in, version=version(wanted), slot=slot(ref), record_bytes=8)
            case ["halted", wanted]:
                live = lives(f"{trainer.rank}:{wanted}")[0]
                return msg.Halted(generation=now_in, live=live)
            case ["recordings", *complete]:
                return recordings(trainer.rank or 0, complete)
            case ["parked", size]:
                return msg.Parked(rank=trainer.rank or 0, geometry=geometry(int(size)))
            case ["connected"]:
                return msg.Connected(generation=now_in, rank=trainer.rank or 0)
            case ["prepared"]:
                return msg.Prepared(generation=now_in, rank=trainer.rank or 0, store=address(name))
            case ["stepped", number]:
                costs = {cost: float(value) for cost, value in named.items()}
                return msg.Stepped(generation=now_in, number=int(number), **costs)  # type: ignore[arg-type]
            case ["standing", number]:
                return msg.Standing(generation=now_in, rank=trainer.rank or 0, number=int(number))
            case ["missed", number]:
                return _missed(now_in, trainer.rank or 0, int(number), named)
            case ["paused", *reason]:
                return msg.Paused(reason=" ".join(reason) or None)
            case ["groups-destroyed"]:
                return msg.GroupsDestroyed()
            case ["exits", code]:
                return msg.Exits(code=int(code))
            case ["pong"]:
                return msg.Pong()
            case ["hung", *found]:
                return msg.Hung(found=" ".join(found))
            case ["durable", number, path]:
                return msg.Durable(step=int(number), path=path)
            case ["damaged", wanted]:
                rank = trainer.rank or 0
                return msg.CopyLost(generation=now_in, node="n0", rank=rank, version=version(wanted))
            case ["inexact", *error]:
                return msg.Failed(error=" ".join(error), inexact=True)
            case ["failed", *error]:
                return msg.Failed(error=" ".join(error))
            case ["unfit", *error]:
                return msg.Failed(error=" ".join(error), unfit=True)
            case ["device-lost", *error]:
                return msg.DeviceLost(error=" ".join(error))
        raise ValueError(words)

    def _permit(
        self, now_in: Generation, watermark: Version | None, keep_from: int, schedule: Schedule = EVERY_STEP
    ) -> msg.Permit:
        return msg.Permit(generation=now_in, watermark=watermark, keep_from=keep_from, schedule=schedule)

    def _plan(self, now_in: Generation, named: dict[str, str]) -> msg.Plan:
        """`resume=v4@1.1 floor=v3@1.1 keep=0 fetch=v4@1.1,v3@1.1 push=v3@1.1`; rank 0 sits here, n1 holds. With
        `per_node=2` rank 1 sits here too, with nothing to fetch or to push.

        With `as_of=1.1` all that is left out, and as in that plan."""
        if self._group is not None:
            parities = int(named.get("parities", self._group.parities))
            self._group = structs.replace(self._group, parities=parities)
        resume = version(named["resume"]) if "resume" in named else None
        floor = version(named["floor"]) if "floor" in named else resume
        keep_from = max(floor.number + 1, resume.number) if floor and resume else 0
        source = (msg.Source(node="n1", address=address("n1"), rank=0, regions=("record", "unique")),)
        fetches = copies(",".join(f"0:{word}" for word in named.get("fetch", "").split(",") if word))
        order = msg.RankOrder(
            rank=0,
            keep="keep" in named,
            fetch=tuple(msg.Fetch(copy=wanted, groups=(source,)) for wanted in fetches),
            pushes=tuple(("n1", version(word)) for word in named.get("push", "").split(",") if word),
        )
        per_node = self._layout.per_node
        plan = msg.Plan(
            generation=now_in,
            cause="fault",
            resume=resume,
            permit=self._permit(now_in, floor, keep_from),
            store_rank=0,
            changes=Changes(since=generation(named["since"])) if "since" in named else Changes(),
        )
        if "as_of" in named:
            return structs.replace(plan, as_of=generation(named["as_of"]))
        return structs.replace(
            plan,
            orders=(order, *(msg.RankOrder(rank=rank, keep=order.keep) for rank in range(1, per_node))),
            holders=tuple(
                msg.Holder(node=node, address=address(node)) for node in ("n1", "n2")[: 1 if self._group is None else 2]
            ),
            held=(per_node,) if "no-longer" not in named else (),
            group=self._group,
        )


def make(kind: str, named: dict[str, str]) -> Bench:
    benches: dict[str, type[CoordinatorBench] | type[AgentBench]] = {
        "coordinator": CoordinatorBench,
        "leadership": LeadershipBench,
        "agent": AgentBench,
    }
    return benches[kind](named)


__all__ = ["Bench", "Phase", "make"]
