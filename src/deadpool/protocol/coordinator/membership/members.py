"""The nodes of the job: those that are with the coordinator, those that fell silent, and whether a spare is left."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from deadpool.protocol.coordinator.recovery.inventory_index import NodeView
from deadpool.protocol.identity import Address, Generation, Layout, Version
from deadpool.protocol.messages import Inventory, Plan, TrainerInfo
from deadpool.protocol.quorum import Voter


@dataclass(slots=True)
class Member:
    """An agent whose messages count."""

    node: str
    incarnation: str
    data: Address
    spare: bool
    heard: float
    rack: str | None = None
    position: int | None = None
    further_positions: tuple[int, ...] = ()  # without processes of their own; it is the home of their ranks' copies
    has_run: bool = False  # it had a seat, under this or an earlier coordinator: a recovery may need its copies
    trainers: tuple[TrainerInfo, ...] = ()
    all_seated: bool = False  # every trainer that it reported has a seat: there is none to rehearse with
    inventory: Inventory | None = None  # frozen at the fence of this generation
    planned_in: Generation | None = None  # the last plan that it has taken over, as of its last fence
    steps: dict[int, int] = field(default_factory=dict)  # of ranks in their loop, in this generation
    steps_reported_at: float = 0.0  # when it last reported them
    paused: dict[int, str] = field(default_factory=dict)  # rank -> why
    quarantined: bool = False
    cut_off: bool = False  # it did not reach another node, and may still not
    doubted: bool = False  # another node is better, for what a feature has been told of this one
    leaving: bool = False  # on purpose: its ranks go to a spare as soon as one can take them
    reserved_position: int | None = None  # this spare is to take it from a node that leaves
    voter: Voter = field(init=False)

    def __post_init__(self) -> None:
        self.voter = (self.node, self.incarnation)

    def note_trainers(self, trainers: tuple[TrainerInfo, ...]) -> None:
        self.trainers = trainers
        self.all_seated = all(trainer.state == "seated" for trainer in trainers)

    @property
    def has_copies(self) -> bool:
        return self.inventory is not None and bool(self.inventory.own or self.inventory.held or self.inventory.joint)

    @property
    def is_spare(self) -> bool:
        return self.position is None and not self.leaving

    def ranks(self, layout: Layout) -> tuple[int, ...]:
        """Returns the ranks whose home this node is, also those that have no process of their own."""
        positions = () if self.position is None else (self.position, *self.further_positions)
        return tuple(rank for position in positions for rank in layout.ranks_at(position))

    def has_missed_one_before(self, plan: Plan) -> bool:
        """Whether a generation has gone whose plan this node has not heard. Then it forgets its recordings with this
        plan, as the script may have begun anew in that one."""
        return self.planned_in is not None and self.planned_in < plan.changes.since

    def view(self, *, recalled: bool = False) -> NodeView:
        return NodeView(
            node=self.node,
            data=self.data,
            position=self.position,
            trainers=self.trainers,
            inventory=self.inventory or Inventory(),
            rack=self.rack,
            quarantined=self.quarantined,
            cut_off=self.cut_off,
            recalled=recalled,
            doubted=self.doubted,
            leaving=self.leaving,
            planned_in=self.planned_in,
        )


class SilentNodes:
    """Nodes that were taken for lost and may come back.

    A node that fell silent may only have been cut off or stopped. When it calls again, other nodes may sit in its
    seats: it is fenced like every node and reports what its arena has. A plan without an order for it then ends its
    trainers and makes it a spare. Until then its copies can serve a plan that needs them.
    """

    def __init__(self) -> None:
        self._silent: list[str] = []  # lost since all ranks last ran, without a sign that they are dead
        self._ran: frozenset[str] = frozenset()  # sat when all ranks last ran, or were told everything that it takes
        self._given_up = False

    def fell_silent(self, node: str) -> None:
        """Takes note of a node that fell silent, or that said that it calls another coordinator. In neither case is it
        known to be dead.
        """
        if node not in self._silent:
            self._silent.append(node)
        self._given_up = False

    def came_back(self, node: str) -> None:
        self._silent = [silent for silent in self._silent if silent != node]

    def seats_may_run(self, seats: Iterable[str]) -> None:
        """The ranks on these nodes can run without hearing from the coordinator again."""
        self._ran = frozenset(seats)

    def seats_run(self, seats: Iterable[str]) -> None:
        """All ranks run again, on these nodes. No silent node is needed back."""
        self._silent.clear()
        self.seats_may_run(seats)

    def give_up(self) -> None:
        self._given_up = True

    @property
    def may_return(self) -> list[str]:
        """Nodes that may come back with copies that no other node has."""
        return [] if self._given_up else list(self._silent)

    @property
    def all_may_run(self) -> bool:
        """Every node that ran last only fell silent. None of them is known to have stopped, so they may go on among
        themselves. One node that is at rest, or dead, is enough to stop them all."""
        return bool(self._ran) and self._ran <= set(self.may_return)


class SpareWatch:
    """Notices when the last spare is gone: after the next loss the job would wait. A job that was started without
    spares needs no warning."""

    def __init__(self) -> None:
        self._had_spare = False

    def is_last_gone(self, members: Iterable[Member]) -> bool:
        """True once, when the last one is gone."""
        had_spare, self._had_spare = self._had_spare, any(member.is_spare for member in members)
        return had_spare and not self._had_spare


def steps_lost(members: Iterable[Member], resume: Version | None) -> int:
    """Completed steps that will be computed again, counted at the rank that was furthest ahead. A node that has come
    back may stand where the others have been since: what it had done beyond that was lost before."""
    inventories = (m.inventory for m in members if m.inventory is not None)
    versions = (batch.version for inventory in inventories for batch in inventory.live.batches)
    reached = [v.number for v in versions if v is not None and (resume is None or v.generation >= resume.generation)]
    return max(0, max(reached, default=0) - (resume.number if resume else 0))


def natural_order(name: str) -> tuple[str, int]:
    """Returns a key for sorting that puts n2 before n10."""
    digits = len(name) - len(name.rstrip("0123456789"))
    return (name[: len(name) - digits], int(name[len(name) - digits :] or 0))
