"""Nodes that do not reach each other although the coordinator hears both.

Such a job stands still, and no rank is at fault: all of them come to rest at a fence, and the next generation stands
still as well. So as soon as the job is late, every node tries to reach the others, again and again until it goes on.

No single word counts. Two nodes are cut off from each other if both say so, or if one says so and the coordinator hears
nothing from the other either, twice in a row. A node says it only of nodes that it has reached before, for which all
are asked while the job runs well: where a firewall lets no data pass, nothing follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from deadpool.protocol.coordinator.job import JobState, Phase
from deadpool.protocol.coordinator.membership.hang import HangMonitor
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import Peer, Probe, Probed

CONNECTS_IN_S = 3.0
"""Groups that need longer to be rebuilt are looked into. To look costs little."""

ANSWERS_IN_S = 3.0
"""A node that does not answer a probe for so long does not answer. It needs half of that where it reaches no one."""

SILENT_SHARE = 0.5
"""The share of the node timeout below which a node that was heard is not silent, whatever others say of it."""

NEXT_ROUND_S, LAST_ROUND_S = 1.0, 30.0
"""The time between two rounds that find nothing new. Once all peers were tried the time doubles."""

WELL_S = 10.0
"""The time between two rounds while the job runs well."""

PEERS = 32
"""Nodes that one node tries in a round. In a larger job it tries other ones in each round, until it has tried all."""

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOff:
    """A node whose ranks have to move, since it and those that it does not reach cannot train together."""

    node: str
    reason: str


class Reachability:
    def __init__(self, job: JobState, hang: HangMonitor) -> None:
        self._job, self._hang = job, hang
        self._number = 0  # of the round, over all generations
        self._asked_at: float | None = None  # None: no answers are waited for
        self._next_at = 0.0
        self._was_late = False
        self._rounds = 0  # since the job is late
        self._counted: tuple[tuple[str, ...], int] = ((), 0)  # seats, and nodes that sit in them
        self._rounds_well = 0  # in this generation, while the job ran well
        self._said: dict[str, frozenset[str]] = {}  # in this round
        self._pairs: set[Pair] = set()  # found in the last round
        self._is_reported = False  # that nothing can be done about it
        self._generation: Generation | None = None

    def discount_stall(self, seconds: float) -> None:
        """Rule 20, timeouts: the coordinator itself did not run for so long."""
        if self._asked_at is not None:
            self._asked_at += seconds

    def check(self, now: float) -> list[CutOff]:
        """Called with each heartbeat. Returns the nodes whose ranks have to move."""
        job = self._job
        if job.released or len(job.seats) < 2:
            return []
        if job.generation != self._generation:
            self._generation, self._was_late, self._rounds_well, self._next_at = job.generation, False, 0, now
        if (late := self._is_late(now)) != self._was_late:
            self._was_late = late
            self._start_over(now)
        if not late:
            self._ask_while_all_is_well(now)
            return []
        if self._asked_at is None:
            if now >= self._next_at:
                self._ask(now, self._rounds)
        elif now >= self._asked_at + ANSWERS_IN_S or len(self._said) == self._nodes:
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
            return self._hang.is_late(now)
        return job.phase is Phase.CONNECTING and now >= job.entered_at + CONNECTS_IN_S

    # --- rounds -------------------------------------------------------------------------------------------------------

    def _start_over(self, now: float) -> None:
        self._rounds, self._asked_at, self._next_at, self._is_reported = 0, None, now, False
        self._pairs.clear()

    @property
    def _nodes(self) -> int:
        """How many nodes sit: counted once per plan, because it is asked at every heartbeat."""
        if self._counted[0] is not self._job.seats:
            self._counted = (self._job.seats, len(set(self._job.seats)))
        return self._counted[1]

    @property
    def _draws(self) -> int:
        """Returns the number of rounds after which every node has tried all others."""
        count = self._nodes
        return 1 if count - 1 <= PEERS else -(-(count // 2) // (PEERS // 2))

    def _ask_while_all_is_well(self, now: float) -> None:
        if self._hang.all_have_stepped and self._rounds_well < self._draws and now >= self._next_at:
            self._ask(now, self._rounds_well)
            self._rounds_well += 1
            self._asked_at, self._next_at = None, now + WELL_S  # agents remember whom they have reached

    def _ask(self, now: float, round: int) -> None:
        self._number += 1
        self._asked_at, self._said = now, {}
        seats, members = tuple(dict.fromkeys(self._job.seats)), self._job.members
        peers = [Peer(node=node, address=members[node].data) for node in seats]
        for position, node in enumerate(seats):
            tried = tuple(peers[other] for other in tried_by(position, len(seats), round))
            probe = Probe(generation=self._job.generation, number=self._number, peers=tried)
            self._job.out.send(node, probe)

    def _end_round(self, now: float) -> list[CutOff]:
        found, before = self._found(), self._pairs
        confirmed, self._pairs, self._asked_at = found & before, found, None
        if found and not before:
            self._ask(now, self._rounds)  # the same peers, at once
            return []
        self._rounds += 1
        cycles = self._rounds // self._draws
        self._next_at = now + min(LAST_ROUND_S, NEXT_ROUND_S * float(2 ** min(10, max(0, cycles - 1))))
        return self._give_up_nodes(confirmed, now) if confirmed else []

    def _found(self) -> set[Pair]:
        """Returns the pairs that were found in this round: both say so, or one does and nothing is heard from the
        other.
        """
        found = set()
        for node, unreachable in self._said.items():
            for other in unreachable:
                if node in self._said.get(other, ()) or self._is_silent(other):
                    found.add((min(node, other), max(node, other)))
        return found

    def _is_silent(self, node: str) -> bool:
        member = self._job.members.get(node)
        return member is None or (self._asked_at is not None and member.heard < self._asked_at)

    # --- what follows -------------------------------------------------------------------------------------------------

    def _give_up_nodes(self, pairs: set[Pair], now: float) -> list[CutOff]:
        """Gives up as few nodes as possible, and only if the job can then go on: half of a cure would cost a spare for
        nothing. A node that is silent is left to the node timeout for a while."""
        job = self._job
        silent = {name for pair in pairs for name in pair if name not in self._said}
        chosen = cover(pairs, first=silent)
        waits = [name for name in chosen if name in silent and not self._is_silent_for_long(name, now)]
        healthy = sum(member.is_spare and not member.quarantined for member in job.members.values())
        members = [job.members[name] for name in chosen if name in job.members]
        if waits:
            return []
        if len(members) > healthy or not job.has_majority_without(*members):
            self._report(pairs)
            return []
        return [CutOff(node=each.node, reason=_reason(each.node, pairs, each.node in silent)) for each in members]

    def _is_silent_for_long(self, node: str, now: float) -> bool:
        member = self._job.members.get(node)
        return member is None or now - member.heard >= SILENT_SHARE * self._job.deadlines.node_s

    def _report(self, pairs: set[Pair]) -> None:
        if not self._is_reported:
            self._is_reported = True
            text = "; ".join(f"{one} and {other}" for one, other in sorted(pairs))
            reason = f"{text} do not reach each other, and without some of them there are too few spares or no majority"
            self._job.out.emit("cut_off", reason=reason)


def _reason(node: str, pairs: set[Pair], is_silent: bool) -> str:
    others = sorted({name for pair in pairs if node in pair for name in pair} - {node})
    return f"node {node} is cut off from {', '.join(others)}{', and is silent' if is_silent else ''}"


def tried_by(position: int, count: int, round: int) -> list[int]:
    """The positions that this one tries in a round, its neighbours in the first one. Those that it tries try it too."""
    if count - 1 <= PEERS:
        return [other for other in range(count) if other != position]
    distances = [1 + (round * PEERS // 2 + index) % (count // 2) for index in range(PEERS // 2)]
    return sorted({(position + sign * distance) % count for distance in distances for sign in (1, -1)})


def cover(pairs: set[Pair], first: Collection[str] = ()) -> list[str]:
    """Nodes without which no pair is left: those of `first`, then always the one that is cut off from most others."""
    chosen = sorted({name for pair in pairs for name in pair} & set(first))
    left = {pair for pair in pairs if not set(pair) & set(chosen)}
    while left:
        counts = Counter(name for pair in left for name in pair)
        node = max(sorted(counts), key=lambda name: counts[name])
        chosen.append(node)
        left = {pair for pair in left if node not in pair}
    return chosen
