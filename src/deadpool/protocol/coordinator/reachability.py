"""Nodes that do not reach each other although the coordinator hears both.

Such a job stands still, and no rank is at fault: all of them come to rest at a fence, and the next generation stands
still as well. So as soon as the job is late, every node tries to reach the others, again and again until it goes on.

No single word counts. Two nodes are cut off from each other if both say so, or if one says so and the coordinator hears
nothing from the other either, twice in a row. A node says it only of nodes that it has reached before, for which all
are asked once in each generation: where a firewall lets no data pass, nothing follows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from deadpool.protocol.coordinator.hang import HangMonitor
from deadpool.protocol.coordinator.job import JobState, Phase
from deadpool.protocol.coordinator.members import Member
from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import Peer, Probe, Probed

CONNECTS_IN_S = 3.0
"""Groups that need longer to be rebuilt are looked into. To look costs little."""

ANSWERS_IN_S = 2.0
"""A node that does not answer a probe for so long is silent. It needs half of that where it reaches no one."""

NEXT_ROUND_S, LAST_ROUND_S = 1.0, 30.0
"""Between two rounds that find nothing: twice as long each time."""

_PEERS = 32
"""Nodes that one node tries in a round. In a larger job they are others in each round, until all have been tried."""

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOff:
    """A node whose ranks have to move, since it and those that it does not reach cannot train together."""

    node: str
    reason: str


class Reachability:
    def __init__(self, job: JobState, hang: HangMonitor) -> None:
        self._job, self._hang = job, hang
        self._number = 0  # of the round
        self._asked_at: float | None = None  # None: no round is under way
        self._next_at = 0.0
        self._pause_s = NEXT_ROUND_S
        self._draw = 0  # which peers are tried
        self._said: dict[str, frozenset[str]] = {}  # in this round
        self._pairs: set[Pair] = set()  # found in the last round
        self._is_reported = False  # that nothing can be done about it
        self._asked_in: Generation | None = None  # whom its nodes reach while all is well

    def discount_stall(self, seconds: float) -> None:
        """Rule 20, timeouts: the coordinator itself did not run for so long."""
        if self._asked_at is not None:
            self._asked_at += seconds

    def check(self, now: float) -> list[CutOff]:
        """Called with each heartbeat. Returns the nodes whose ranks have to move."""
        if len(self._job.seats) < 2:
            return []
        if not self._is_late(now):
            self._rest()
            if self._asked_in != self._job.generation and self._hang.all_have_stepped:
                self._asked_in = self._job.generation
                self._ask(now)
            return []
        if self._asked_at is None:
            if now >= self._next_at:
                self._ask(now)
        elif now >= self._asked_at + ANSWERS_IN_S or len(self._said) == len(self._job.seats):
            return self._end_round(now)
        return []

    def on_probed(self, member: Member, probed: Probed, now: float) -> list[CutOff]:
        if probed.number != self._number or self._asked_at is None or member.position is None:
            return []
        self._said[member.node] = frozenset(probed.unreachable)
        return self.check(now)

    def _is_late(self, now: float) -> bool:
        job = self._job
        if job.phase is Phase.RUNNING:
            return not job.released and self._hang.is_late(now)
        if job.phase is Phase.CONNECTING and job.phase_deadline is not None:
            return now >= job.phase_deadline - job.deadlines.connect_s + CONNECTS_IN_S
        return False

    # --- rounds -------------------------------------------------------------------------------------------------------

    def _rest(self) -> None:
        self._asked_at, self._next_at, self._pause_s = None, 0.0, NEXT_ROUND_S
        self._pairs.clear()
        self._is_reported = False

    def _ask(self, now: float) -> None:
        self._number += 1
        if not self._pairs:  # else the same peers are tried again
            self._draw = self._number
        self._asked_at, self._said = now, {}
        seats, members = self._job.seats, self._job.members
        peers = [Peer(node=node, address=members[node].data) for node in seats]
        for position, node in enumerate(seats):
            tried = tuple(peers[other] for other in tried_by(position, len(seats), self._draw))
            probe = Probe(generation=self._job.generation, number=self._number, peers=tried)
            self._job.out.send(node, probe)

    def _end_round(self, now: float) -> list[CutOff]:
        found = self._found()
        confirmed, self._pairs, self._asked_at = found & self._pairs, found, None
        if found and not confirmed:
            self._ask(now)
            return []
        self._next_at = now + self._pause_s
        self._pause_s = min(LAST_ROUND_S, 2 * self._pause_s)
        return self._give_up_nodes(confirmed) if confirmed else []

    def _found(self) -> set[Pair]:
        """In this round: both say so, or one does and the other does not answer."""
        found = set()
        for node, unreachable in self._said.items():
            for other in unreachable:
                if other not in self._said or node in self._said[other]:
                    found.add((min(node, other), max(node, other)))
        return found

    # --- what follows -------------------------------------------------------------------------------------------------

    def _give_up_nodes(self, pairs: set[Pair]) -> list[CutOff]:
        """As few as possible. A node that is silent as well is lost in any case; the others need spares."""
        job = self._job
        lost: list[CutOff] = []
        spares = sum(member.is_spare and not member.quarantined for member in job.members.values())
        for node in _cover(pairs, silent={name for pair in pairs for name in pair} - self._said.keys()):
            if node not in self._said or len(lost) < spares:
                others = sorted({name for pair in pairs if node in pair for name in pair} - {node})
                silent = "" if node in self._said else ", and is silent"
                lost.append(CutOff(node=node, reason=f"node {node} is cut off from {', '.join(others)}{silent}"))
        if not lost and not self._is_reported:
            self._is_reported = True
            text = "; ".join(f"{one} and {other}" for one, other in sorted(pairs))
            job.out.emit("cut_off", reason=f"{text} do not reach each other, and there is no spare to take their place")
        return lost


def tried_by(position: int, count: int, draw: int) -> list[int]:
    """The positions that this one tries. Those that it tries try it too."""
    if count - 1 <= _PEERS:
        return [other for other in range(count) if other != position]
    farthest = count // 2
    distances = [1 + (draw * _PEERS // 2 + index) % farthest for index in range(_PEERS // 2)]
    return sorted({(position + sign * distance) % count for distance in distances for sign in (1, -1)})


def _cover(pairs: set[Pair], silent: set[str]) -> list[str]:
    """Nodes without which no pair is left: the one that is cut off from most others first, and of equal ones the one
    that is silent."""
    chosen: list[str] = []
    left = set(pairs)
    while left:
        counts = Counter(name for pair in left for name in pair)
        node = max(sorted(counts), key=lambda name: (counts[name], name in silent))
        chosen.append(node)
        left = {pair for pair in left if node not in pair}
    return chosen
