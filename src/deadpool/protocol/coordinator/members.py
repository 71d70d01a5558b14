"""The nodes that are with us, as the coordinator sees them, and which of their trainers should rehearse which rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from deadpool.protocol.coordinator.inventory_index import NodeView
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.messages import Inventory, TrainerInfo
from deadpool.protocol.quorum import Voter
from deadpool.protocol.topology import Address, Layout

Casting = list[tuple[str, int]]  # trainer, rank


@dataclass(slots=True)
class Member:
    """An agent that is with us."""

    node: str
    incarnation: str
    data: Address
    spare: bool
    heard: float
    rack: str | None = None
    position: int | None = None
    has_run: bool = False  # had a seat, under whichever coordinator: a recovery may need what it has
    trainers: tuple[TrainerInfo, ...] = ()
    inventory: Inventory | None = None  # frozen at the fence of this generation
    planned_in: Generation | None = None  # the newest plan that it has acknowledged its part of
    steps: dict[int, int] = field(default_factory=dict)  # of ranks in their loop, in this generation
    steps_told: float = 0.0  # when
    paused: dict[int, str] = field(default_factory=dict)  # rank -> why
    quarantined: bool = False
    leaving: bool = False  # on purpose: its ranks go to a spare as soon as one can take them
    heir_to: int | None = None  # the position that this spare is to take from a node that leaves
    voter: Voter = field(init=False)

    def __post_init__(self) -> None:
        self.voter = (self.node, self.incarnation)

    @property
    def has_copies(self) -> bool:
        return self.inventory is not None and bool(self.inventory.own or self.inventory.held)

    def view(self, *, recalled: bool = False) -> NodeView:
        return NodeView(
            node=self.node,
            data=self.data,
            position=self.position,
            trainers=self.trainers,
            inventory=self.inventory or Inventory(),
            rack=self.rack,
            quarantined=self.quarantined,
            recalled=recalled,
            leaving=self.leaving,
            planned_in=self.planned_in,
        )


def steps_lost(members: Iterable[Member], resume: Version | None) -> int:
    """Completed steps that will be computed again, counted at the rank that was furthest ahead. Who has returned may
    stand where the others have been since: what it had done beyond that was lost before."""
    inventories = (m.inventory for m in members if m.inventory is not None)
    versions = (batch.version for inventory in inventories for batch in inventory.live.batches)
    reached = [v.number for v in versions if v is not None and (resume is None or v.born >= resume.born)]
    return max(0, max(reached, default=0) - (resume.number if resume else 0))


def castings(members: list[Member], layout: Layout) -> Iterator[tuple[Member, Casting]]:
    """Spare nodes rehearse different positions; a standby on a seated node rehearses that node's own ranks."""
    order = far_apart(layout.positions)
    first = 0
    for member in members:
        if member.position is None and (member.quarantined or member.leaving):
            continue  # what it rehearsed would be for nothing
        if member.position is not None:
            yield member, cast(member, list(layout.ranks_at(member.position)), repeat=True)
            continue
        sets = max(1, len(member.trainers) // layout.per_node)
        positions = [order[(first + i) % layout.positions] for i in range(sets)]
        first += sets
        if member.heir_to is not None:
            positions = [member.heir_to, *(p for p in positions if p != member.heir_to)][:sets]
        yield member, cast(member, [rank for position in positions for rank in layout.ranks_at(position)])


def far_apart(count: int) -> list[int]:
    """0, 1/2, 1/4, 3/4, 1/8, ... of all positions, each once. Neighbours are mostly alike: with pipeline stages
    outermost they belong to one stage."""
    bits = max(0, count - 1).bit_length()
    fractions = (int(format(index, f"0{bits}b")[::-1], 2) for index in range(1 << bits))
    return list(dict.fromkeys(fraction * count >> bits for fraction in fractions))


def cast(member: Member, ranks: list[int], *, repeat: bool = False) -> Casting:
    """Each rank that nobody rehearses there yet gets a free trainer; with `repeat` further ones rehearse it too."""
    free = [t for t in member.trainers if t.state in ("idle", "rehearsing", "parked")]
    at_work = {t.rank for t in member.trainers if t.state in ("starting", "rehearsing", "parked") and t.rank in ranks}
    movable = [t for t in free if t.state == "idle" or t.rank not in ranks]
    wanted = [rank for rank in ranks if rank not in at_work]
    wanted += ranks * len(movable) if repeat else []
    return [(trainer.trainer, rank) for trainer, rank in zip(movable, wanted, strict=False)]


def natural(name: str) -> tuple[str, int]:
    """For sorting: n2 before n10."""
    digits = len(name) - len(name.rstrip("0123456789"))
    return (name[: len(name) - digits], int(name[len(name) - digits :] or 0))
