"""Positions that no node can take are carried by others.

`ShrunkSeats` seats of a job that has fewer nodes than positions: what its plan says differently.

A rank without a process comes with its copies, as a newcomer's rank does; its record is loaded by its carrier.

`CarriedPositions`: what becomes of positions that no node can take, where the user lets the job shrink.

What ranks have said of their layout is kept here: a rank's next process has said nothing before it runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace as changed

from msgspec.structs import replace

from deadpool.protocol.coordinator.outbox import CoordinatorConfig, Outbox
from deadpool.protocol.coordinator.recovery.global_plan import (
    SPARES_AWAITED,
    ClusterView,
    GlobalPlan,
    NoPlan,
    OrderFor,
    Seats,
    Vacancies,
)
from deadpool.protocol.coordinator.recovery.inventory_index import NodeView
from deadpool.protocol.coordinator.recovery.placement import Placement, Rack
from deadpool.protocol.features.shrink.coordinator.carriers import Shrunk, place_shrunk, shrink
from deadpool.protocol.identity import Layout
from deadpool.protocol.messages import Connect, RankOrder, Shares, TrainerInfo
from deadpool.protocol.schemes import Scheme


class ShrunkSeats(Seats):
    is_full = False

    def __init__(self, shrunk: Shrunk, lacking: NoPlan) -> None:
        """`lacking`: without them the job would wait for this."""
        super().__init__(shrunk.seats)
        self.carried = shrunk.carried
        self._lacking = lacking

    @property
    def process_positions(self) -> dict[str, int]:
        return {node: position for position, node in enumerate(self.nodes) if position not in self.carried}

    def moved(self, nodes: Iterable[NodeView]) -> Collection[str]:
        stays = self.process_positions
        return {node.node for node in nodes if stays.get(node.node) != node.position}

    def refusal_without_version(self) -> NoPlan | None:
        return cannot_shrink(self._lacking, "no version is left that a carrier could begin from")

    def place(self, view: ClusterView, racks: Sequence[Rack], scheme: Scheme) -> Placement:
        return place_shrunk(racks, scheme, self.carried)

    def further_orders(self, layout: Layout, position: int | None, order_for: OrderFor) -> Iterator[RankOrder]:
        for carried in (p for p, carrier in self.carried.items() if carrier == position):
            for rank, carrier in zip(layout.ranks_at(carried), layout.ranks_at(self.carried[carried]), strict=True):
                yield replace(order_for(rank), keep=False, carrier=carrier)

    def connect(self, connect: Connect, layout: Layout) -> Connect:
        return replace(connect, carried=self.carried_ranks(layout))

    def carried_ranks(self, layout: Layout) -> tuple[tuple[int, int], ...]:
        """Each rank without a process, and the rank that carries it."""
        pairs = ((layout.ranks_at(p), layout.ranks_at(carrier)) for p, carrier in sorted(self.carried.items()))
        return tuple(pair for ranks, carriers in pairs for pair in zip(ranks, carriers, strict=True))


def carried_in(seats: Seats | NoPlan | None) -> dict[int, int]:
    """Positions without processes, and those that carry their ranks."""
    return seats.carried if isinstance(seats, ShrunkSeats) else {}


def cannot_shrink(lacking: NoPlan, why: str) -> NoPlan:
    return changed(lacking, reason=f"{lacking.reason}; the job cannot shrink: {why}")


def vacancies(config: CoordinatorConfig) -> Vacancies:
    """A job with several coordinators does not shrink: each seat has a vote, and a carried one would have none."""
    allowed = config.settings.without_spare == "shrink" and config.is_alone
    return CarriedPositions() if allowed else SPARES_AWAITED


class CarriedPositions:
    may_fill = True
    prospect = "shrinks, if its layout and script allow it"

    def __init__(self) -> None:
        self.inexact_from: int | None = None
        self._shares: dict[int, Shares] = {}  # by rank, as one of its processes has said

    def on_trainers(self, trainers: Iterable[TrainerInfo]) -> None:
        self._shares |= {t.rank: t.shares for t in trainers if t.rank is not None and t.shares is not None}

    def fill(self, view: ClusterView, lacking: NoPlan) -> Seats | NoPlan:
        scheme = view.scheme or Scheme(copies=view.layout.holders)
        found = shrink(view.layout, lacking.seats, view.nodes, scheme, self._shares)
        return ShrunkSeats(found, lacking) if isinstance(found, Shrunk) else cannot_shrink(lacking, found)

    def on_plan(self, plan: GlobalPlan, before: Seats | None, layout: Layout, out: Outbox) -> None:
        """Tells of it: from the first such plan on the job is not bit-identical to an undisturbed one."""
        carried, were_carried = carried_in(plan.seating), carried_in(before)
        step = plan.resume.number if plan.resume else 0
        if carried and self.inexact_from is None:
            self.inexact_from = step
        if carried == were_carried:
            return
        ranks = plan.seating.carried_ranks(layout) if isinstance(plan.seating, ShrunkSeats) else ()
        out.emit(
            "shrunk" if set(carried) - set(were_carried) else "grown",
            step=step,
            nodes=len(set(plan.seats)),
            of=layout.positions,
            carried={str(rank): carrier for rank, carrier in ranks},
            inexact_from=self.inexact_from,
        )
