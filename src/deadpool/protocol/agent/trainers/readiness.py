"""What ranks have reported on the way to Go, and what live ranks recorded for newcomers.

`Gathered` and `Readiness`: what the ranks of a node have reported since the plan, so that the coordinator hears it
once per node.

If each rank spoke for itself, a coordinator of thousands of nodes would have most of its work with these two
reports. Where some ranks of a node are late, the heartbeat sends what the others have reported, so that the
coordinator can name the ranks that it waits for.

`NodeRecordings`: the recordings of small collectives that a node keeps, for the ranks that are seated or rehearsed
there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from msgspec.structs import replace

from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.agent.trainers.trainers import EARLIER_START, NodeTrainers, Trainer, TrainerState
from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import Connected, NodeConnected, NodePrepared, Plan, Prepared, Recording, Rehearse

Report = TypeVar("Report", Prepared, Connected)


class Gathered(Generic[Report]):
    """What ranks have reported and the coordinator was not told yet."""

    def __init__(self, ranks: frozenset[int] = frozenset()) -> None:
        self._missing = set(ranks)
        self._untold: list[Report] = []

    def add(self, report: Report) -> bool:
        """Returns whether this was the last rank."""
        self._missing.discard(report.rank)
        self._untold.append(report)
        return not self._missing

    def take(self) -> list[Report]:
        untold, self._untold = sorted(self._untold, key=lambda report: report.rank), []
        return untold


class Readiness:
    def __init__(self, state: AgentState) -> None:
        self._state = state
        self._store_rank: int | None = None
        self.forget()

    def forget(self) -> None:
        """Forgets, at a fence, what was gathered: it is of a generation that is over."""
        self._prepared, self._connected = Gathered[Prepared](), Gathered[Connected]()

    def begin(self, plan: Plan) -> None:
        ranks = frozenset(order.rank for order in plan.orders)
        self._store_rank = plan.store_rank
        self._prepared, self._connected = Gathered[Prepared](ranks), Gathered[Connected](ranks)

    def on_prepared(self, prepared: Prepared, further: Iterable[int] = ()) -> None:
        """`further`: ranks whose work the same process does."""
        for rank in further:
            self._prepared.add(replace(prepared, rank=rank))
        if self._prepared.add(prepared):
            self._tell_prepared()

    def on_connected(self, connected: Connected, further: Iterable[int] = ()) -> None:
        for rank in further:
            self._connected.add(replace(connected, rank=rank))
        if self._connected.add(connected):
            self._tell_connected()

    def tell_so_far(self) -> None:
        """With a heartbeat, where some rank is late."""
        self._tell_prepared()
        self._tell_connected()

    def _tell_prepared(self) -> None:
        if not (prepared := self._prepared.take()):
            return
        message = NodePrepared(
            generation=self._state.current.generation,
            ranks=tuple(each.rank for each in prepared),
            store=next((each.store for each in prepared if each.rank == self._store_rank), None),
            agreements=tuple(sorted({each.agreement for each in prepared})),
        )
        self._state.tell_coordinator(message)

    def _tell_connected(self) -> None:
        if connected := self._connected.take():
            ranks = tuple(each.rank for each in connected)
            self._state.tell_coordinator(NodeConnected(generation=self._state.current.generation, ranks=ranks))


class NodeRecordings:
    def __init__(self, trainers: NodeTrainers) -> None:
        self._trainers = trainers
        self._of_rank: dict[int, Recording] = {}
        self._from_coordinator: set[int] = set()  # ranks whose recording the coordinator sent since the last fence
        self._coordinator_has: set[int] = set()  # ranks whose recording the present coordinator has

    def fence(self) -> None:
        self._from_coordinator.clear()

    def on_coordinator_recording(self, recording: Recording) -> None:
        """Keeps a recording that the coordinator has sent. It is of the start that the job goes on from."""
        self._from_coordinator.add(recording.rank)
        self._coordinator_has.add(recording.rank)
        self.keep(recording)

    def on_own_recording(self, recording: Recording) -> None:
        """Keeps a recording of a trainer that is seated here. The coordinator is told it too."""
        self._coordinator_has.add(recording.rank)
        self.keep(recording)

    def forget_coordinator(self) -> None:
        """Another one leads, or the same one had lost this node. What the node tells it now counts only if the node
        still has its seat, so it is told again with the next plan."""
        self._coordinator_has.clear()

    def of(self, rank: int) -> Recording | None:
        return self._of_rank.get(rank)

    def unknown_to_coordinator(self, ranks: Iterable[int]) -> list[Recording]:
        """Returns the recordings that the coordinator does not have, and counts them as told. A coordinator that took
        over has no recording of a rank whose node was lost with the coordinator before it; a spare that rehearsed the
        rank has."""
        unknown = [self._of_rank[rank] for rank in ranks if rank in self._of_rank and rank not in self._coordinator_has]
        self._coordinator_has.update(recording.rank for recording in unknown)
        return unknown

    def forget_own(self) -> set[int]:
        """The script may have begun anew without this node, so only what the coordinator has sent since then counts.
        Returns the ranks of which a recording is left."""
        kept = self._from_coordinator
        self._of_rank = {rank: recording for rank, recording in self._of_rank.items() if rank in kept}
        return set(self._of_rank)

    def keep(self, recording: Recording) -> None:
        self._of_rank[recording.rank] = recording
        for trainer in list(self._trainers.by_name.values()):
            rehearses = trainer.state in (TrainerState.REHEARSING, TrainerState.PARKED)
            if not rehearses or trainer.rank != recording.rank:
                continue
            if trainer.begun and trainer.recorded_start not in (None, recording.start):
                self._trainers.replace(trainer, EARLIER_START, rank=trainer.rank)
            else:
                self._send(trainer, recording)

    def void(self, start: Generation) -> None:
        """The script begins at its first line, and this time peers may tell each other something else. A node that
        comes back hears of a start that others made long ago, and may have recordings of it already."""
        for rank in [rank for rank, recording in self._of_rank.items() if recording.start != start]:
            self.keep(Recording(rank=rank, start=start, complete=False, book=b""))

    def begin_rehearsal(self, trainer: Trainer, order: Rehearse) -> None:
        trainer.state, trainer.rank = TrainerState.REHEARSING, order.rank
        self.send_to(trainer)
        self._trainers.tell(trainer, order)

    def send_to(self, trainer: Trainer) -> None:
        """Sends a trainer the recording of its rank. It has to precede the order to be that rank, on the same link."""
        if trainer.rank in self._of_rank:
            self._send(trainer, self._of_rank[trainer.rank])

    def _send(self, trainer: Trainer, recording: Recording) -> None:
        """A trainer that will rehearse begins the script when it has one that is not void (trainer/process/main.py)."""
        self._trainers.tell(trainer, recording)
        if not recording.is_void:
            trainer.begun, trainer.recorded_start = True, recording.start
