"""A small world of coordinators and nodes, to ask one question only: can two of them have a generation run at once?

Nodes are the real `TakeoverRecord`, elections the real `electorates` and `Quorum`; everything else is as adverse as it
can be: nodes are parted at will and turn to a coordinator that they can reach, every term goes on for as long as a node
obeys it, orders arrive late, one by one, or never. There is no time and no data, so that many thousand histories can be
walked through.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from deadpool.protocol.agent.leadership.takeover_report import TakeoverRecord
from deadpool.protocol.identity import FOUNDING, NO_GENERATION, Generation, Layout, Schedule
from deadpool.protocol.messages import Fence, Go, Permit, Plan, RankOrder
from deadpool.protocol.quorum import Changes, Footing, Promise, Quorum, Voter, electorates

Order = Fence | Plan | Go


class Split(AssertionError):
    """Two generations run."""


@dataclass
class Node:
    name: str
    record: TakeoverRecord = field(default_factory=TakeoverRecord)
    generation: Generation = NO_GENERATION

    @property
    def footing(self) -> Footing:
        return self.record.footing(self.generation)


class CoordinatorTerm:
    """The time of one coordinator, from its election until no node listens to it."""

    def __init__(self, world: World, term: int, members: dict[str, int | None], quorum: Quorum) -> None:
        self._world, self.term, self.members, self._quorum = world, term, members, quorum
        self.generation = NO_GENERATION
        self.mail: dict[str, deque[Order]] = {node: deque() for node in members}
        self._acked: set[str] = set()
        self._leaving: str | None = None
        self._planned = self._gone = False

    def found(self) -> None:
        self.generation = Generation(self.term, FOUNDING)
        self._quorum.pass_to(self.generation, map(voter, self._seats()))
        self._send_plan()

    def fence(self, newest: Generation) -> None:
        self.generation, self._planned, self._gone = newest.next(self.term), False, False
        self._acked.clear()
        self._send(lambda node: Fence(generation=self.generation, cause=""))

    def lose(self, node: str) -> None:
        """Rightly or not."""
        position = self.members.pop(node)
        del self.mail[node]
        if position is not None:
            self.fence(self.generation)
        elif not self._planned:
            self._maybe_plan()

    def take_back(self, node: str) -> None:
        """As a spare, whatever it was before: it is fenced, so that its trainers end."""
        self.members[node] = None
        self.mail[node] = deque([Fence(generation=self.generation, cause="")])

    def let_leave(self, node: str) -> None:
        """Its seat is given to another when the plan is made, if there is one to take it."""
        self._leaving = node
        self.fence(self.generation)

    def acked(self, node: str, generation: Generation) -> None:
        if node not in self.members or generation != self.generation:
            return
        self._acked.add(node)
        if not self._planned:
            self._maybe_plan()
        elif not self._gone and self._acked >= set(self._seats()):
            self._go()

    def _maybe_plan(self) -> None:
        if not self._acked >= self.members.keys() or not self.is_enough(self._seats()):
            return
        spares = [node for node, position in self.members.items() if position is None]
        leaving, self._leaving = self._leaving, None
        if leaving in self.members and spares and self.is_enough(node for node in self._seats() if node != leaving):
            self.members[leaving] = None
        taken = {position for position in self.members.values() if position is not None}
        empty = [position for position in range(self._world.positions) if position not in taken]
        if len(spares) >= len(empty):
            for position, node in zip(empty, self._world.rng.sample(spares, len(empty)), strict=True):
                self.members[node] = position
            self._send_plan()

    def is_enough(self, seats: Iterable[str]) -> bool:
        """Of the nodes that will sit in the plan: a node that is asked later has heard of it if it has gone."""
        return self._quorum.has([voter(node) for node in seats])

    def _send_plan(self) -> None:
        self._planned, self._gone = True, False
        self._acked.clear()
        changes = self._quorum.changes([voter(node) for node in self._seats()])
        self._send(lambda node: _part(self.generation, self.members[node], changes))

    def _go(self) -> None:
        self._gone = True
        self._quorum.pass_to(self.generation, map(voter, self._seats()))
        self._send(lambda node: Go(generation=self.generation, cause=""), self._seats())
        self._world.went(self.generation, self._seats())

    def _seats(self) -> list[str]:
        """By position."""
        seats = {position: node for node, position in self.members.items() if position is not None}
        return [node for _, node in sorted(seats.items())]

    def _send(self, order: Callable[[str], Order], nodes: Iterable[str] | None = None) -> None:
        for node in self.members if nodes is None else nodes:
            self.mail[node].append(order(node))


def voter(node: str) -> Voter:
    return (node, "")


def _part(generation: Generation, position: int | None, changes: Changes) -> Plan:
    orders = () if position is None else (RankOrder(rank=position, keep=True),)
    permit = Permit(generation=generation, watermark=None, keep_from=0, schedule=Schedule())
    return Plan(
        generation=generation, cause="", resume=None, permit=permit, store_rank=0, orders=orders, changes=changes
    )


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.positions = self.rng.choice((3, 4, 5))
        self._chances = [self.rng.choice((0.01, 0.03)), *(self.rng.choice((0.02, 0.1, 0.2)) for _ in range(3)), 1.0]
        self.layout = Layout(positions=self.positions, per_node=1, holders=1)
        spares = self.rng.randint(self.positions - 1, self.positions + 2)
        self.nodes = {name: Node(name) for name in [f"n{i}" for i in range(self.positions + spares)]}
        self._gone: dict[Generation, list[str]] = {}
        self.newest = NO_GENERATION  # that ran
        members = {name: i if i < self.positions else None for i, name in enumerate(self.nodes)}
        self.side: set[str] = set()
        self.term = 1
        self.terms = [CoordinatorTerm(self, 1, members, Quorum(alone=False))]
        for node in self.nodes.values():
            node.record.promise = Promise(term=1, to="1")
        self.terms[0].found()

    # --- what may happen ---------------------------------------------------------------------------------------------

    def walk(self, events: int) -> None:
        for _ in range(events):
            acts = (self._part, self._elect, self._lose, self._change, self._deliver)
            (act,) = self.rng.choices(acts, self._chances)
            act()

    def _part(self) -> None:
        """From now on these can reach one coordinator, and the others another one."""
        self.side = set(self.rng.sample(sorted(self.nodes), len(self.nodes) // 2))

    def _elect(self) -> None:
        """Most of the nodes that can meet have turned to the same coordinator."""
        side = self.side if self.rng.random() < 0.5 else self.nodes.keys() - self.side
        here = [name for name in sorted(side) if self.rng.random() < 0.9]
        footings = {voter(name): self.nodes[name].footing for name in here}
        quorum = Quorum(alone=False, electorates=electorates(self.positions, footings))
        if not quorum.electorates or not quorum.has(footings):
            return
        self.term += 1
        for name in here:
            self.nodes[name].record.promise = Promise(term=self.term, to=str(self.term))
        self.terms = [term for term in self.terms if self._followers(term)]
        term = CoordinatorTerm(self, self.term, self._seated(here), quorum)
        self.terms.append(term)
        term.fence(max(footing.generation for footing in footings.values()))

    def _followers(self, term: CoordinatorTerm) -> list[str]:
        return [name for name in term.members if self.nodes[name].record.promise.term == term.term]

    def _seated(self, here: list[str]) -> dict[str, int | None]:
        """As in a takeover: the newest plan decides, and a node whose seat was given away has none."""
        seats: dict[str, int | None] = {}
        for name in sorted(here, key=lambda name: self.nodes[name].footing.planned, reverse=True):
            position = self.nodes[name].footing.position
            if position is None or position not in seats.values():
                seats[name] = position
        return seats

    def _lose(self) -> None:
        """Mostly, but not only, nodes that do not listen any more."""
        term = self.rng.choice(self.terms)
        gone = [name for name in term.members if self.nodes[name].record.promise.term != term.term]
        names = gone if gone and self.rng.random() < 0.8 else list(term.members)
        if names:
            term.lose(self.rng.choice(names))

    def _change(self) -> None:
        """A node comes back to the coordinator that it still follows, or leaves on purpose."""
        term = self.rng.choice(self.terms)
        away = [name for name, node in self.nodes.items() if node.record.promise.term == term.term]
        away = [name for name in away if name not in term.members]
        if away:
            term.take_back(self.rng.choice(away))
        elif term.members:
            term.let_leave(self.rng.choice(list(term.members)))

    def _deliver(self) -> None:
        """Orders come in the order in which they were said, if they come at all."""
        waiting = [(term, name) for term in self.terms for name, mail in term.mail.items() if mail]
        if not waiting:
            return
        term, name = self.rng.choice(waiting)
        order = term.mail[name].popleft()
        if self.nodes[name].record.promise.term == term.term:
            self._obey(self.nodes[name], order)
            if not isinstance(order, Go):
                term.acked(name, order.generation)

    def _obey(self, node: Node, order: Order) -> None:
        node.generation = order.generation
        match order:
            case Fence():
                pass
            case Plan():
                node.record.on_plan(order, self.layout)
            case Go():
                node.record.on_go()

    # --- what must not -----------------------------------------------------------------------------------------------

    def went(self, generation: Generation, seats: list[str]) -> None:
        """A coordinator says Go. The generation runs unless a seat has left it meanwhile: a step needs all of them."""
        self._gone[generation] = seats
        running = [each for each, holders in self._gone.items() if self._are_in(each, holders)]
        if len(running) > 1:
            raise Split(f"{generation} goes, and {running} run")
        if generation in running and generation < self.newest:
            raise Split(f"{generation} goes, and {self.newest} ran before")
        self.newest = max([self.newest, *running])

    def _are_in(self, generation: Generation, names: list[str]) -> bool:
        return all(self.nodes[name].generation == generation for name in names)
