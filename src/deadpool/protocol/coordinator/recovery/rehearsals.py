"""Spare trainers rehearse ranks: which trainer rehearses which rank, and which recordings its node needs for that.

A rank's recording holds what small collectives gave it, so that a rehearsal can replay them. A node gets the recording
of a rank when it first rehearses or seats that rank, and again whenever the recording is renewed.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from deadpool.protocol.coordinator.job import JobState
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.identity import Layout
from deadpool.protocol.messages import Recording, Rehearse

_REHEARSING = ("starting", "rehearsing", "parked")
_NO_RANKS: frozenset[int] = frozenset()

Assignment = list[tuple[str, int]]
"""Trainer and rank."""


class Rehearsals:
    def __init__(self, job: JobState) -> None:
        self._job = job
        self._recordings = RecordingCache()

    def assign_all(self) -> None:
        """While the job runs, every free trainer rehearses a rank, and its node has the recording of that rank."""
        nodes = self._job.members.values()
        members = [member for member in nodes if member.position is None or not member.all_seated]
        for member in members:
            self._send_rehearsed(member)
        for member, assignment in assignments(members, self._job.layout, self._job.positions_rehearsed_first):
            self._order(member, assignment)

    def take_over(self) -> None:
        """The coordinator before this one has sent the nodes the recordings of the ranks that they seat."""
        for member in self._job.members.values():
            for trainer in member.trainers:
                if trainer.rank is not None and trainer.state == "seated":
                    self._recordings.note_reader(member.node, trainer.rank)
        self.assign_all()

    def rehearse_position(self, member: Member, position: int) -> None:
        """The node will be seated there: it builds for these ranks while survivors are still unwinding."""
        self._order(member, assign(member, list(self._job.layout.ranks_at(position))))

    def _order(self, member: Member, assignment: Assignment) -> None:
        self.send_recordings(member.node, [rank for _, rank in assignment])
        for trainer, rank in assignment:
            order = Rehearse(generation=self._job.generation, trainer=trainer, rank=rank)
            self._job.out.send(member.node, order)

    # --- recordings ---------------------------------------------------------------------------------------------------

    def on_recording(self, member: Member, recording: Recording) -> None:
        """A node that is not the rank's home has nothing to say of it."""
        if self._job.layout.position_of(recording.rank) in (member.position, *member.further_positions):
            self._job.out.send_each(self._recordings.renew(member.node, recording), recording)

    def send_recordings(self, node: str, ranks: Sequence[int]) -> None:
        """Sends recordings before the order that needs them, on the same link."""
        for recording in self._recordings.lend(node, ranks):
            self._job.out.send(node, recording)

    def _send_rehearsed(self, member: Member) -> None:
        ranks = [t.rank for t in member.trainers if t.rank is not None and t.state in _REHEARSING]
        self.send_recordings(member.node, ranks)

    def send_again(self, member: Member) -> None:
        """Sends a node again what its trainers rehearse, now or once there is a recording. It forgets its recordings
        with the plan that was just sent to it."""
        self.forget(member.node)
        self._send_rehearsed(member)

    def take_recordings(self, packed: Sequence[bytes]) -> None:
        """The job begins from what an earlier job kept: its processes rehearse with what that one recorded."""
        for rank, data in enumerate(packed):
            if data:
                recording = Recording(rank=rank, start=self._job.generation, complete=bool(data[0]), book=data[1:])
                self._recordings.add(recording)

    def forget(self, node: str) -> None:
        self._recordings.forget(node)

    def discard_recordings(self) -> None:
        """The script begins at its first line. Agents discard theirs when they hear the plan."""
        self._recordings.clear()


class RecordingCache:
    """Which recordings there are, and which nodes have them."""

    def __init__(self) -> None:
        self._of_rank: dict[int, Recording] = {}
        self._readers: dict[int, set[str]] = {}  # by rank: nodes that have its recording, or will once there is one
        self._read_by: dict[str, set[int]] = {}  # the same by node

    def add(self, recording: Recording) -> None:
        self._of_rank[recording.rank] = recording

    def renew(self, node: str, recording: Recording) -> list[str]:
        """Keeps a recording of the rank's own node, and returns the other nodes that have to get it."""
        self._of_rank[recording.rank] = recording
        others = sorted(self._readers.get(recording.rank, set()) - {node})
        self.note_reader(node, recording.rank)
        return others

    def lend(self, node: str, ranks: Sequence[int]) -> list[Recording]:
        """The recordings that this node lacks. From here on it gets every renewal."""
        has = self._read_by.get(node, _NO_RANKS)
        if has.issuperset(ranks):
            return []  # true of most nodes in most plans
        unread = [rank for rank in ranks if rank not in has]
        for rank in unread:
            self.note_reader(node, rank)
        return [self._of_rank[rank] for rank in unread if rank in self._of_rank]

    def note_reader(self, node: str, rank: int) -> None:
        self._readers.setdefault(rank, set()).add(node)
        self._read_by.setdefault(node, set()).add(rank)

    def clear(self) -> None:
        self._of_rank.clear()

    def forget(self, node: str) -> None:
        for rank in self._read_by.pop(node, _NO_RANKS):
            self._readers[rank].discard(node)


# --- which trainer rehearses which rank -------------------------------------------------------------------------------


def assignments(
    members: list[Member], layout: Layout, urgent: Sequence[int] = ()
) -> Iterator[tuple[Member, Assignment]]:
    """Spare nodes rehearse different positions; a standby on a seated node rehearses that node's own ranks."""
    spares = [each for each in members if each.position is None and not (each.quarantined or each.leaving)]
    chosen = _positions_of(spares, layout, urgent)
    for member in members:
        if member.position is not None:
            yield member, assign(member, list(layout.ranks_at(member.position)), repeat=True)
        elif member.node in chosen:  # else it will get no rank
            ranks = [rank for position in chosen[member.node] for rank in layout.ranks_at(position)]
            yield member, assign(member, ranks)


def _positions_of(spares: list[Member], layout: Layout, urgent: Sequence[int]) -> dict[str, list[int]]:
    """A spare goes on with what it rehearses, unless another one before it does so too: to begin anew takes time in
    which nothing is rehearsed. Further positions come in turn. An urgent position that none would rehearse is rehearsed
    by the first spare that rehearses no other urgent one."""
    order = far_apart(layout.positions)
    count = {each.node: min(layout.positions, max(1, len(each.trainers) // layout.per_node)) for each in spares}
    chosen: dict[str, list[int]] = {}
    covered: set[int] = set()
    for spare in spares:
        kept = [each for each in _rehearsed_by(spare, layout) if each not in covered]
        chosen[spare.node] = kept[: count[spare.node]]
        covered.update(chosen[spare.node])
    in_turn = itertools.chain([each for each in order if each not in covered], itertools.cycle(order))
    for spare in spares:
        own = chosen[spare.node]
        while len(own) < count[spare.node]:
            own += [position] if (position := next(in_turn)) not in own else []
    waiting = [each for each in urgent if not any(each in own for own in chosen.values())]
    for spare in spares:
        own = chosen[spare.node]
        if waiting and own[-1] not in urgent:
            own[-1] = waiting.pop(0)
        reserved = spare.reserved_position
        if reserved is not None:
            own[:] = [reserved, *(each for each in own if each != reserved)][: len(own)]
    return chosen


def _rehearsed_by(member: Member, layout: Layout) -> list[int]:
    """The positions of which it rehearses ranks, those with the most first."""
    ranks = [t.rank for t in member.trainers if t.rank is not None and t.state in _REHEARSING]
    return [position for position, _ in Counter(map(layout.position_of, ranks)).most_common()]


@functools.cache
def far_apart(count: int) -> tuple[int, ...]:
    """0, 1/2, 1/4, 3/4, 1/8, ... of all positions, each once. Neighbours are mostly alike: with pipeline stages
    outermost they belong to one stage. A job has one count, and asks whenever a spare reports its trainers."""
    bits = max(0, count - 1).bit_length()
    fractions = (int(format(index, f"0{bits}b")[::-1], 2) for index in range(1 << bits))
    return tuple(dict.fromkeys(fraction * count >> bits for fraction in fractions))


def assign(member: Member, ranks: list[int], *, repeat: bool = False) -> Assignment:
    """A free trainer for each rank that no trainer of this node rehearses yet. With `repeat` the trainers that are left
    rehearse these ranks too."""
    free = [t for t in member.trainers if t.state in ("idle", "rehearsing", "parked")]
    rehearsed = {t.rank for t in member.trainers if t.state in _REHEARSING and t.rank in ranks}
    movable = [t for t in free if t.state == "idle" or t.rank not in ranks]
    wanted = [rank for rank in ranks if rank not in rehearsed]
    wanted += ranks * len(movable) if repeat else []
    return [(trainer.trainer, rank) for trainer, rank in zip(movable, wanted, strict=False)]
