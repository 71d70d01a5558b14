"""Who has erred, once it is known which computations of a step are right. Values and pure functions only.

Rule 35, an audited step is computed twice; rule 36, a spare is the judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deadpool.protocol.features.corruption.coordinator.computations import Computation, OddOne, difference
from deadpool.protocol.features.corruption.coordinator.judges import Computed, Settled, Turn, nodes_only_in, odd_ones
from deadpool.protocol.features.corruption.coordinator.votes import Evidence, Found
from deadpool.protocol.identity import Layout


@dataclass(frozen=True, slots=True)
class Named:
    evidence: Evidence
    errors: int  # in this step


@dataclass(frozen=True, slots=True)
class Unexplained:
    reason: str


@dataclass(frozen=True, slots=True)
class ByProcess:
    """A rank computes something else in a new process, on its own node too: it is the script."""

    node: str
    ranks: tuple[int, ...]


Finding = Named | Unexplained | ByProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All computations of one step."""

    step: int
    layout: Layout
    computed: Sequence[Computed]
    turn: Turn | None
    confirmed: Mapping[str, int]  # by node: the newest step in which another node has computed the same

    def findings(self, settled: Settled) -> list[Finding]:
        return [self._find(group, settled) for group in odd_ones(self.computed, settled)]

    def agreed(self, settled: Settled) -> list[str]:
        """Nodes that have computed the same for the ranks whose turn it was."""
        position = self.turn.position if self.turn is not None else None
        return list(dict.fromkeys(each.seats[position] for each in settled.trusted if position is not None))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Whose turn it was."""
        return tuple(self.layout.ranks_at(self.turn.position)) if self.turn is not None else ()

    def _find(self, group: tuple[Computed, ...], settled: Settled) -> Finding:
        only, trusted = nodes_only_in(group, settled), settled.trusted[-1].told
        if len(group) == 1:
            return self._find_once(group[0], trusted)
        if len(only) == 1:
            return Named(self._repeated(only.pop(), group[0], trusted), len(group))
        if self.turn is not None and self.turn.node in self.agreed(settled):
            return ByProcess(self.turn.node, self.ranks)
        return _unexplained(group[0], trusted)

    def _find_once(self, odd: Computed, trusted: Computation) -> Finding:
        one = OddOne(odd.told, trusted, is_first=odd is self.computed[0])
        node = one.node(lambda rank: odd.seats[self.layout.position_of(rank)])
        return Named(one.evidence(node, self.step), 1) if node is not None else _unexplained(odd, trusted)

    def _repeated(self, node: str, odd: Computed, trusted: Computation) -> Evidence:
        """Whatever stage it was, what they have in common is this node."""
        ranks = tuple(self.layout.ranks_at(odd.seats.index(node)))
        found = difference(odd.told, trusted)
        assert found is not None
        stage = found.stage.value
        return Evidence(
            node=node,
            ranks=ranks,
            step=self.step,
            found=Found.REPEATED,
            digests=tuple(f"{getattr(odd.told[rank], stage):016x}" for rank in ranks),
            others=tuple(sorted({f"{getattr(trusted[rank], stage):016x}" for rank in ranks})),
            confirmed=self.confirmed.get(node),
        )


def _unexplained(odd: Computed, trusted: Computation) -> Unexplained:
    found = difference(odd.told, trusted)
    assert found is not None
    ranks = ", ".join(map(str, found.ranks))
    return Unexplained(f"one of several computations differs, on ranks {ranks} first, in {found.stage.text}")
