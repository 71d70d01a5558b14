"""What a node says of itself with every heartbeat: steps, pauses, costs, efforts."""

from __future__ import annotations

from deadpool.protocol.agent.capture_costs import CostBook
from deadpool.protocol.agent.delta_report import Telling
from deadpool.protocol.agent.state import Station
from deadpool.protocol.agent.work_time import EffortBook
from deadpool.protocol.messages import Costs, Effort, Heartbeat, Missed, Settings, Stepped
from deadpool.protocol.topology import Schedule


class Vitals:
    def __init__(self, station: Station) -> None:
        self._station = station
        self.costs = CostBook()
        self._efforts = EffortBook()
        self._told_costs = Telling[Costs](lambda costs: (costs.every, costs.step_s, costs.stall_s, costs.commit_s))
        self._told_efforts = Telling[Effort](lambda effort: (effort.step_s, effort.own_s))
        self.due: float | None = None  # the next heartbeat

    # --- who listens, and to what ------------------------------------------------------------------------------------

    def welcomed(self, settings: Settings, now: float) -> None:
        """Whoever listens has been told nothing yet."""
        self.due = now + settings.heartbeat_s
        self._forget()

    def fence(self, now: float) -> None:
        """To acknowledge it is a sign of life as well: one beat is left out, so that a coordinator of thousands hears
        acknowledgements first."""
        settings = self._station.settings
        if settings is not None and self.due is not None:
            self.due = min(self.due, now + settings.heartbeat_s) + settings.heartbeat_s
        self.costs.clear()
        self._efforts.clear()
        self._forget()

    def _forget(self) -> None:
        self._told_costs.forget()
        self._told_efforts.forget()

    def reschedule(self, schedule: Schedule) -> None:
        self.costs.begin(schedule)
        self._told_costs.forget()

    # --- news --------------------------------------------------------------------------------------------------------

    def stepped(self, rank: int, message: Stepped, now: float) -> None:
        self.costs.stepped(rank, message, now)
        self._efforts.stepped(rank, message)

    def missed(self, rank: int, message: Missed) -> None:
        self.costs.missed(rank, message)

    def committed(self, number: int, now: float) -> None:
        self.costs.committed(number, now)

    # --- the beat ----------------------------------------------------------------------------------------------------

    def look(self, now: float) -> bool:
        """Whether it was time for one."""
        settings = self._station.settings
        if self.due is None or now < self.due or settings is None:
            return False
        self.due = now + settings.heartbeat_s
        self._beat()
        return True

    def _beat(self) -> None:
        station = self._station
        in_loop = [(t.rank, t) for t in station.crew.seated() if t.rank is not None and t.has_state]
        station.tell_coordinator(
            Heartbeat(
                generation=station.generation,
                steps=tuple((rank, trainer.step) for rank, trainer in in_loop),
                paused=tuple((rank, trainer.paused) for rank, trainer in in_loop if trainer.paused is not None),
                costs=self._told_costs.news(self.costs.told()),
                efforts=self._told_efforts.news(self._efforts.told()),
            )
        )
