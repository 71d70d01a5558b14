"""What every rank's state should be at every version: the truth that the checkers compare with.

Arithmetic in this world is not deterministic: a step computed again, in another generation, gives another result. So
two births of one version number differ, and a resume that mixed them would be noticed. Only the data that a rank sees
is the same however often a step is computed: every rank must end where it would have ended in an undisturbed run.
"""

from __future__ import annotations

from dataclasses import dataclass

from deadpool.protocol.identity import Generation, Version

_MASK = (1 << 61) - 1


def mix(*numbers: int) -> int:
    """A hash of integers, which does not depend on PYTHONHASHSEED."""
    return hash(numbers) & _MASK


@dataclass(frozen=True, slots=True)
class State:
    """One rank's state: a part of its own, a part that all ranks hold alike, and the data that it has seen.

    Where ranks can be carried (rule 30, carried ranks) no rank has a part of its own, and the other part is held alike
    by the ranks of one shard."""

    unique: int
    replica: int
    course: int


Total = tuple[int, int]
"""Sums over all ranks: of their own parts, and of the data that they have seen."""


def initial(generation: Generation, rank: int, shard: int | None = None, *, exact: bool = False) -> State:
    """`shard`: the tensors that it holds, and no others. None: it has a part of its own. `exact`: what all ranks hold
    alike does not depend on the generation."""
    if exact:
        return State(mix(generation.term, generation.n, rank, 1), mix(2), mix(rank, 3))
    if shard is not None:
        return State(0, mix(generation.term, generation.n, 2, shard), mix(rank, 3))
    unique, replica = mix(generation.term, generation.n, rank, 1), mix(generation.term, generation.n, 2)
    return State(unique, replica, mix(rank, 3))


def total_of(states: list[State]) -> Total:
    return (sum(state.unique for state in states) & _MASK, sum(state.course for state in states) & _MASK)


def stepped(
    state: State,
    total: Total,
    version: Version,
    rank: int,
    shard: int | None = None,
    *,
    exact: bool = False,
    repeats: bool = False,
) -> State:
    """The state after the last step of `version`: it depends on every rank's state before. What a shard becomes depends
    on the data of all ranks. `repeats`: nothing depends on the generation."""
    generation, number = version.generation, version.number
    if shard is not None:
        replica = mix(state.replica, total[1], generation.term, generation.n, number, shard)
        return State(0, replica, _on_course(state.course, total[1], number, rank))
    birth = () if repeats else (generation.term, generation.n)
    unique = mix(state.unique, total[0], *birth, number, rank)
    inexact = () if exact else (total[0], *birth)
    replica = mix(state.replica, *inexact, number)
    return State(unique, replica, _on_course(state.course, total[1], number, rank))


def _on_course(course: int, total: int, number: int, rank: int) -> int:
    return mix(course, total, number, rank)


class History:
    """The one chain of versions that happened. A plan cuts it at its resume version."""

    def __init__(self, world_size: int, shards: int = 0, *, exact: bool = False, repeats: bool = False) -> None:
        """`shards`: so many ranks together hold all tensors, and the next ones hold the same again. 0: every rank has
        tensors of its own."""
        self.world_size, self.shards, self.exact, self._repeats = world_size, shards, exact, repeats
        self._resumed_from: dict[Generation, Version | None] = {}
        self._undisturbed: list[list[int]] = [[mix(rank, 3) for rank in range(world_size)]]
        self._states: dict[tuple[Generation, int], list[State]] = {}  # not by Version: its equality is under test

    def planned(self, generation: Generation, resume: Version | None, origin: Version | None) -> None:
        """`origin`: the version that was written to the checkpoint from which the plan resumes, under a new birth."""
        self._resumed_from[generation] = resume
        if resume is not None and origin is not None:
            self._states[resume.generation, resume.number] = self.states(origin)

    def undisturbed(self, number: int, rank: int) -> int:
        """The data that a rank has seen after so many steps of a run without faults."""
        while len(self._undisturbed) <= number:
            before = self._undisturbed[-1]
            total, this = sum(before) & _MASK, len(self._undisturbed)
            self._undisturbed.append([_on_course(course, total, this, r) for r, course in enumerate(before)])
        return self._undisturbed[number][rank]

    def shard_of(self, rank: int) -> int | None:
        return rank % self.shards if self.shards else None

    def state(self, version: Version, rank: int) -> State:
        return self.states(version)[rank]

    def states(self, version: Version) -> list[State]:
        key = (version.generation, version.number)
        if key not in self._states:
            self._states[key] = self._compute(version)
        return self._states[key]

    def _compute(self, version: Version) -> list[State]:
        if version.number == 0:
            return [self.initial(version.generation, rank) for rank in range(self.world_size)]
        before = self.states(self._before(version))
        total = total_of(before)
        return [self.stepped(state, total, version, rank) for rank, state in enumerate(before)]

    def initial(self, generation: Generation, rank: int) -> State:
        return initial(generation, rank, self.shard_of(rank), exact=self.exact)

    def stepped(self, state: State, total: Total, version: Version, rank: int) -> State:
        return stepped(state, total, version, rank, self.shard_of(rank), exact=self.exact, repeats=self._repeats)

    def _before(self, version: Version) -> Version:
        resume = self._resumed_from[version.generation]
        if resume is not None and resume.number == version.number - 1:
            return resume
        return Version(version.generation, version.number - 1)
