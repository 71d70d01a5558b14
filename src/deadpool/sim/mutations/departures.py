"""Broken rules of leaving on purpose.

Two more were tried and go unnoticed, since what follows is one more recovery or a copy less: a node that leaves before
its copies lie elsewhere, and its memory counted on by the plan. The transcript drain.txt shows both.
"""

from __future__ import annotations

from collections.abc import Mapping

from deadpool.protocol.departures import Departures, Next, Stage
from deadpool.protocol.fencing import Fencing
from deadpool.protocol.members import Member
from deadpool.sim.mutations.mutation import Mutation, Patch


def handed_over_before_everybody_has_sealed(patch: Patch) -> None:
    real = Departures.look

    def look(self: Departures, members: Mapping[str, Member], now: float) -> Next | None:
        found, drain = real(self, members, now), self.drain
        stand = drain is not None and len(drain.standing) == self._layout.world_size
        return found or (Next.HAND_OVER if stand and drain and drain.stage is Stage.STOPPING else None)

    patch.set(Departures, "look", look)


def handed_over_wherever_ranks_stand(patch: Patch) -> None:
    def stands(self: Departures, rank: int, number: int) -> None:
        if self.drain is not None and self.drain.stage is Stage.STOPPING:
            self.drain.standing.add(rank)
            self.drain.sealed.add(rank)

    patch.set(Departures, "stands", stands)


def seats_given_up_without_a_majority(patch: Patch) -> None:
    patch.set(Fencing, "_keep_who_is_needed", lambda self: None)


MUTATIONS = [
    Mutation("21 handed over before everybody has sealed", handed_over_before_everybody_has_sealed, "departures"),
    Mutation("21 handed over wherever ranks stand", handed_over_wherever_ranks_stand, "departures"),
    Mutation("18 seats given up without a majority", seats_given_up_without_a_majority, "departures"),
]
