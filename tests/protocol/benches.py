"""Benches on which a transcript tries a core: each turns an input line into inputs, and keeps time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from notation import address, copies, copy, generation, geometry, lives, options, replicated, slot, version

from deadpool.protocol import effects as fx
from deadpool.protocol import messages as msg
from deadpool.protocol.agent import Agent
from deadpool.protocol.coordinator import Coordinator, Phase
from deadpool.protocol.deadlines import Deadlines
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.seal import Digest
from deadpool.protocol.topology import Layout, Schedule

DEADLINES = Deadlines(node_s=5, fence_s=10, prepare_s=60, connect_s=20, spare_wait_s=100, hang_s=0)


def settings(layout: Layout, slots: int) -> msg.Settings:
    return msg.Settings(layout=layout, slots=slots, heartbeat_s=1, unwind_s=4)


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
        effects = []
        for input in self.inputs(words):
            effects += self.core.step(input, now=self.now)
            self.core.check()
        return effects

    def inputs(self, words: list[str]) -> list[Any]:
        raise NotImplementedError


class CoordinatorBench(Bench):
    """Lines: `n0: sealed 0 v1@1.1`, `lost n1`, `wait 5`; `n0: @1.1 sealed ...` was said in that generation."""

    def __init__(self, named: dict[str, str]) -> None:
        super().__init__()
        layout = layout_of(named)
        schedule = Schedule(every=int(named.get("every", 1)))
        deadlines = replace(DEADLINES, hang_s=float(named.get("hang", 0)))
        self.core: Coordinator = Coordinator(settings=settings(layout, 2), deadlines=deadlines, schedule=schedule)
        self._layout = layout

    def inputs(self, words: list[str]) -> list[Any]:
        match words:
            case ["tick"]:
                return [fx.Tick()]
            case ["stop"]:
                return [fx.StopAsked(reason="asked to")]
            case ["lost", node]:
                return [fx.LinkLost(node=node, reason="closed")]
            case ["everybody", *rest]:
                return [i for node in list(self.core.seats) for i in self._of_seat(node, rest)]
            case [who, *rest]:
                return [fx.FromAgent(node=who.rstrip(":"), message=self._message(rest))]
        raise ValueError(words)

    def _of_seat(self, node: str, words: list[str]) -> list[Any]:
        """`everybody connected`: for each rank of each seat. `everybody has v1@1.1`: sealed, and stored where held."""
        layout, position = self._layout, self.core.seats.index(node)
        own = list(layout.ranks_at(position))
        if words[0] == "plan-ack":
            said = [words]
        elif words[0] == "heartbeat":
            said = [[words[0], *(f"{rank}:{step}" for rank in own for step in words[1:])]]
        elif words[0] == "has":
            held = [r for p in self.core.commits.placement.held_by(position) for r in layout.ranks_at(p)]
            said = [["sealed", str(r), words[1]] for r in own] + [["stored", str(r), words[1]] for r in held]
        else:
            said = [[words[0], str(rank), *words[1:]] for rank in own]
        return [fx.FromAgent(node=node, message=self._message(line)) for line in said]

    def _message(self, words: list[str]) -> Any:
        now_in: Generation = self.core.generation
        if words[0].startswith("@"):
            now_in, words = generation(words[0][1:]), words[1:]
        plain, named = options(words)
        match plain:
            case ["join", *spare]:
                rack = named.get("rack")
                return msg.Join(node="?", incarnation="1", data=address("?"), spare=bool(spare), rack=rack)
            case ["heartbeat", *steps]:
                return msg.Heartbeat(generation=now_in, steps=_steps(steps), paused=_by_rank(named.get("paused")))
            case ["trainers", *infos]:
                return msg.Trainers(trainers=tuple(_info(word) for word in infos))
            case ["trainer-lost", rank, *reason]:
                return msg.TrainerLost(generation=now_in, trainer="t", rank=int(rank), reason=" ".join(reason))
            case ["sealed", rank, name] if "replica" in named:
                peers = tuple(int(peer) for peer in named["peers"].split(","))
                return msg.Sealed(generation=now_in, copy=replicated(f"{rank}:{name}", int(named["replica"]), peers))
            case ["sealed", rank, name]:
                return msg.Sealed(generation=now_in, copy=copy(f"{rank}:{name}"))
            case ["stored", rank, name]:
                return msg.Stored(generation=now_in, rank=int(rank), version=version(name), bytes_received=1)
            case ["missed", rank, number]:
                return msg.Missed(generation=now_in, rank=int(rank), number=int(number), reason="no free slot")
            case ["fence-ack"]:
                inventory, hung = _inventory(named), _by_rank(named.get("hung"))
                return msg.FenceAck(generation=now_in, inventory=inventory, hung=hung)
            case ["plan-ack"]:
                return msg.PlanAck(generation=now_in)
            case ["prepared", rank]:
                agreement = named.get("agreement", "")
                return msg.Prepared(generation=now_in, rank=int(rank), store=address(f"r{rank}"), agreement=agreement)
            case ["prompts", rank, *complete]:
                return prompts(int(rank), complete)
            case ["connected", rank]:
                return msg.Connected(generation=now_in, rank=int(rank))
            case ["finished", rank]:
                return msg.Finished(generation=now_in, rank=int(rank))
            case ["ended", rank, code]:
                return msg.Ended(generation=now_in, rank=int(rank), code=int(code))
        raise ValueError(words)


def _inventory(named: dict[str, str]) -> msg.Inventory:
    live, own, held = (named.get(kind, "") for kind in ("live", "own", "held"))
    return msg.Inventory(live=lives(live), own=copies(own), held=copies(held))


def _steps(words: list[str]) -> tuple[tuple[int, int], ...]:
    return tuple((int(rank), int(step)) for rank, step in (word.split(":") for word in words))


def _by_rank(word: str | None) -> tuple[tuple[int, str], ...]:
    """1:evaluation"""
    return tuple((int(rank), reason) for rank, reason in [word.split(":")]) if word else ()


def _info(word: str) -> msg.TrainerInfo:
    name, state, *rank = word.split(":")
    return msg.TrainerInfo(trainer=name, state=state, rank=int(rank[0]) if rank else None)


def prompts(rank: int, complete: list[str]) -> msg.Prompts:
    return msg.Prompts(rank=rank, start=Generation(1, 1), complete=bool(complete), book=b"")


class AgentBench(Bench):
    """Lines: `plan 1.1`, `fence 1.2`, `n0.0: captured v1@1.1 1/0`, `hashed 1/0`, `exited n0.0 -9`."""

    def __init__(self, named: dict[str, str]) -> None:
        super().__init__()
        self.core: Agent = Agent(node="n0", standby=int(named.get("standby", 0)))
        self._layout = layout_of(named)
        self._slots = int(named.get("slots", 2))

    def inputs(self, words: list[str]) -> list[Any]:
        plain, named = options(words)
        match plain:
            case ["tick"]:
                return [fx.Tick()]
            case ["welcome"]:
                return [_from(msg.Welcome(term=1, settings=settings(self._layout, self._slots)))]
            case ["fence", name]:
                return [_from(msg.Fence(generation=generation(name), cause="fault"))]
            case ["plan", name]:
                return [_from(self._plan(generation(name), named))]
            case ["go", name]:
                return [_from(msg.Go(generation=generation(name), cause="fault"))]
            case ["prompts", rank, *complete]:
                return [_from(prompts(int(rank), complete))]
            case ["rehearse", name, rank]:
                return [_from(msg.Rehearse(generation=self.core.generation, trainer=name, rank=int(rank)))]
            case ["permit", name, number]:
                return [_from(self._permit(self.core.generation, version(name), int(number)))]
            case ["release"]:
                return [_from(msg.Release(generation=self.core.generation))]
            case ["exited", name, code]:
                return [fx.TrainerExited(trainer=name, code=int(code), reason=f"exit code {code}")]
            case [name, *said] if name.endswith(":"):
                return [fx.FromTrainer(trainer=name.rstrip(":"), message=self._said(name.rstrip(":"), said))]
        return [self._data_news(plain, named)]

    def _data_news(self, plain: list[str], named: dict[str, str]) -> Any:
        match plain:
            case ["allocated", segment]:
                return fx.Allocated(segment=int(segment))
            case ["hashed", ref]:
                return fx.Hashed(slot=slot(ref), digest=Digest(record=0, unique=0, replica=0))
            case ["cut", name]:
                return fx.StreamsCut(generation=generation(name))
            case ["pushed", name, node]:
                wanted = copy(name).seal
                return fx.Pushed(rank=wanted.rank, version=wanted.version, node=node)
            case ["push-failed", name, node, *reason]:
                wanted = copy(name).seal
                return fx.PushFailed(rank=wanted.rank, version=wanted.version, node=node, reason=" ".join(reason))
            case ["fetched", name, ref]:
                return fx.Fetched(rank=copy(name).seal.rank, slot=slot(ref), copy=copy(name))
            case ["fetch-failed", rank, ref]:
                return fx.FetchFailed(rank=int(rank), slot=slot(ref), reason="nobody answers")
            case ["offered", number, name]:
                in_generation = generation(named["in"]) if "in" in named else self.core.generation
                return fx.Offered(offer=int(number), generation=in_generation, copy=copy(name))
            case ["received", name, ref]:
                return fx.Received(slot=slot(ref), copy=copy(name), bytes_received=1)
        raise ValueError(plain)

    def _said(self, name: str, words: list[str]) -> Any:
        now_in = self.core.generation
        trainer = self.core.crew.trainers[name]
        match words:
            case ["hello"]:
                return msg.TrainerHello(trainer=name, pid=1, store=address(name))
            case ["declare", size]:
                return msg.Declare(geometry=geometry(int(size)), peers=())
            case ["captured", wanted, ref]:
                return msg.Captured(generation=now_in, version=version(wanted), slot=slot(ref), record_bytes=8)
            case ["halted", wanted]:
                live = lives(f"{trainer.rank}:{wanted}")[0]
                return msg.Halted(generation=now_in, live=live)
            case ["prompts", *complete]:
                return prompts(trainer.rank or 0, complete)
            case ["prepared"]:
                return msg.Prepared(generation=now_in, rank=trainer.rank or 0, store=address(name))
            case ["stepped", number]:
                return msg.Stepped(generation=now_in, number=int(number))
            case ["paused", *reason]:
                return msg.Paused(reason=" ".join(reason) or None)
            case ["hung", *found]:
                return msg.Hung(found=" ".join(found))
            case ["failed", *error]:
                return msg.Failed(error=" ".join(error))
            case ["device-lost", *error]:
                return msg.DeviceLost(error=" ".join(error))
        raise ValueError(words)

    def _permit(self, now_in: Generation, watermark: Version | None, keep_from: int) -> msg.Permit:
        return msg.Permit(generation=now_in, watermark=watermark, keep_from=keep_from, schedule=Schedule())

    def _plan(self, now_in: Generation, named: dict[str, str]) -> msg.Plan:
        """`resume=v4@1.1 floor=v3@1.1 keep=0 fetch=v4@1.1,v3@1.1 push=v3@1.1`; rank 0 sits here, n1 holds."""
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
        return msg.Plan(
            generation=now_in,
            cause="fault",
            resume=resume,
            permit=self._permit(now_in, floor, keep_from),
            store_rank=0,
            orders=(order,),
            holders=(msg.Holder(node="n1", address=address("n1")),),
            held=(1,) if "no-longer" not in named else (),
        )


def _from(message: Any) -> fx.FromCoordinator:
    return fx.FromCoordinator(message=message)


def make(kind: str, named: dict[str, str]) -> Bench:
    return CoordinatorBench(named) if kind == "coordinator" else AgentBench(named)


__all__ = ["Bench", "Phase", "make"]
