"""What becomes of positions that no node can take, where the user lets the job shrink.

What ranks have said of their layout is kept here: a rank's next process has said nothing before it runs.
"""

from __future__ import annotations

from collections.abc import Iterable

from deadpool.protocol.coding import Scheme
from deadpool.protocol.coordinator.config import CoordinatorConfig
from deadpool.protocol.coordinator.outbox import Outbox
from deadpool.protocol.coordinator.recovery.global_plan import (
    SPARES_AWAITED,
    ClusterView,
    GlobalPlan,
    NoPlan,
    Seats,
    Vacancies,
)
from deadpool.protocol.features.shrink.coordinator.carriers import Shrunk, shrink
from deadpool.protocol.features.shrink.coordinator.shrunk_seats import ShrunkSeats, cannot_shrink, carried_in
from deadpool.protocol.messages import Shares, TrainerInfo
from deadpool.protocol.topology import Layout


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
