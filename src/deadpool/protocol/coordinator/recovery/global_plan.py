"""What a plan is made from, and what it is: values that the planner takes and gives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from deadpool.protocol.coordinator.outbox import Outbox
from deadpool.protocol.coordinator.protection.redundancy import COPIES_ONLY, Redundancy
from deadpool.protocol.coordinator.recovery.fallback import KeptVersion
from deadpool.protocol.coordinator.recovery.inventory_index import NodeView
from deadpool.protocol.coordinator.recovery.placement import NO_PLACEMENT, Placement, Rack, place
from deadpool.protocol.identity import Generation, Layout, Schedule, Version
from deadpool.protocol.messages import Connect, Fetch, Permit, Plan, RankOrder, TrainerInfo
from deadpool.protocol.schemes import Scheme

OrderFor = Callable[[int], RankOrder]
"""What a certain node has to do for this rank."""


class Seats:
    """The node at each position. Here every position has a node of its own, whose processes are its ranks'."""

    is_full: bool = True

    def __init__(self, nodes: tuple[str, ...]) -> None:
        self.nodes = nodes

    @property
    def process_positions(self) -> dict[str, int]:
        """The nodes, each with the position whose ranks have their processes there."""
        return {node: position for position, node in enumerate(self.nodes)}

    def moved(self, nodes: Iterable[NodeView]) -> Collection[str]:
        """Nodes that stay, but whose processes go on as other ranks, so that their live state counts for none."""
        return ()

    def refusal_without_version(self) -> NoPlan | None:
        """Why the job cannot start from its first line with these seats; None: it can."""
        return None

    def place(self, view: ClusterView, racks: Sequence[Rack], scheme: Scheme) -> Placement:
        """Places copies. After a plan whose seats were not full they are placed as if they had never been placed: two
        positions of one node had the same holders."""
        known = view.placement if view.before is None or view.before.seating.is_full else NO_PLACEMENT
        if scheme.in_groups:
            return view.redundancy.place(racks, scheme, known, view.extra_holders)
        return place(racks, scheme, known, view.extra_holders)

    def further_orders(self, layout: Layout, position: int | None, order_for: OrderFor) -> Iterator[RankOrder]:
        """Yields orders for ranks without processes whose home the node at this position is."""
        return iter(())

    def connect(self, connect: Connect, layout: Layout) -> Connect:
        """Adds what trainers have to know of ranks without processes."""
        return connect


class Vacancies(Protocol):
    """What becomes of positions that no node can take. It is told what trainers say, since that may decide it."""

    @property
    def may_fill(self) -> bool: ...

    @property
    def prospect(self) -> str:
        """What the job does after the next loss without a spare, for people."""

    @property
    def inexact_from(self) -> int | None:
        """The step from which on the job has not been bit-identical to an undisturbed one; None: it is."""

    def on_trainers(self, trainers: Iterable[TrainerInfo]) -> None: ...

    def fill(self, view: ClusterView, lacking: NoPlan) -> Seats | NoPlan:
        """Seats without the missing nodes, or why the job waits for them."""

    def on_plan(self, plan: GlobalPlan, before: Seats | None, layout: Layout, out: Outbox) -> None:
        """A plan is carried out; `before` are the seats of the one before."""


class SparesAwaited:
    """Nothing becomes of them: the job waits for spares."""

    may_fill = False
    prospect = "waits for one"
    inexact_from = None

    def on_trainers(self, trainers: Iterable[TrainerInfo]) -> None:
        pass

    def fill(self, view: ClusterView, lacking: NoPlan) -> Seats | NoPlan:
        return lacking

    def on_plan(self, plan: GlobalPlan, before: Seats | None, layout: Layout, out: Outbox) -> None:
        pass


SPARES_AWAITED = SparesAwaited()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """Everything that a plan may be made from. `nodes` are in order of joining, so that equal spares are taken in that
    order."""

    layout: Layout
    generation: Generation
    cause: str
    nodes: tuple[NodeView, ...]
    watermark: Version | None
    schedule: Schedule
    committed: bool = True  # False: the watermark is only where a young job resumed, and would be no loss
    placement: Placement = NO_PLACEMENT  # of the plan before
    before: GlobalPlan | None = None  # that plan, where it is known
    scheme: Scheme | None = None  # None: as many copies as the layout has holders
    extra_holders: frozenset[int] = frozenset()  # positions whose ranks get one holder more than the scheme says
    fallback: KeptVersion | None = None  # to begin from where no version is left in memory
    unread: frozenset[Fetch] = frozenset()  # what newcomers could not get from the sources that inventories name
    void: tuple[Version, ...] = ()  # what is newer than one of these, and of an earlier generation, counts as lost
    vacancies: Vacancies = SPARES_AWAITED
    redundancy: Redundancy = COPIES_ONLY
    moves: Mapping[int, str] = field(
        default_factory=dict
    )  # positions that certain nodes take in this plan, whoever sits there


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalPlan:
    """The plan for all nodes; `parts` is what each of them is told."""

    generation: Generation
    seating: Seats
    placement: Placement
    resume: Version | None
    permit: Permit
    store_rank: int
    parts: dict[str, Plan]
    fallback: str = ""  # the kept version that every rank's state comes from

    @property
    def seats(self) -> tuple[str, ...]:
        """The node at each position."""
        return self.seating.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlan:
    """Why there is no plan. With `missing_nodes` a spare would help; with `ranks` only a fallback would.

    A job that never committed a version has nothing to lose: its plan is to start from its first line.
    """

    reason: str
    missing_nodes: int = 0
    ranks: tuple[int, ...] = ()
    seats: tuple[str | None, ...] = ()  # with `missing_nodes`: None where a node is missing
