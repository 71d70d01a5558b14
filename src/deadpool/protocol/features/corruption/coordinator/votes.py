"""A vote: what replicas say of one version by their digests, and who is at fault. Values and pure functions only.

Ranks that hold the same state have the same digest of it, in every bit. So a group of replicas differs only where some
rank has computed, kept or copied something wrong, or where the script is not the same on all of them:

    outvoted    three or more vote, and one node alone is against a majority that is on other nodes
    changed     the step was computed again from the same version, and this node says something else than before
    repeated    everybody says the same again: a device that errs in the same way every time, or the script

Rule 34, replicas vote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from deadpool.protocol.identity import Value, Version

Digest = tuple[int, int]
"""How many bytes the replicas hold alike, and the checksum of these bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    rank: int
    node: str
    digest: Digest
    peers: tuple[int, ...]  # ranks that hold the same; it may or may not name itself


@dataclass(frozen=True, slots=True)
class Group:
    """Replicas of the same state that differ."""

    ballots: tuple[Ballot, ...]

    @property
    def majority(self) -> Digest | None:
        """What more than half of the ranks say, on more than one node. None: nothing is."""
        digest, count = Counter(each.digest for each in self.ballots).most_common(1)[0]
        nodes = {each.node for each in self.ballots if each.digest == digest}
        return digest if 2 * count > len(self.ballots) and len(nodes) > 1 else None

    def agrees_without(self, node: str) -> bool:
        return len({each.digest for each in self.ballots if each.node != node}) == 1


@dataclass(frozen=True, slots=True)
class Vote:
    """A version of which some replicas differ."""

    version: Version
    groups: tuple[Group, ...]

    @property
    def ballots(self) -> list[Ballot]:
        return sorted((each for group in self.groups for each in group.ballots), key=lambda ballot: ballot.rank)

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(each.rank for each in self.ballots)

    @property
    def outvoted(self) -> str | None:
        """The only node that is against a majority, where everybody agrees without it."""
        nodes = {
            each.node
            for group in self.groups
            if (majority := group.majority) is not None
            for each in group.ballots
            if each.digest != majority
        }
        node = next(iter(nodes)) if len(nodes) == 1 else None
        return node if node is not None and all(group.agrees_without(node) for group in self.groups) else None

    def evidence(self, node: str) -> Evidence:
        """Returns the evidence against a node that is outvoted."""
        odd = [(group, each) for group in self.groups for each in group.ballots if each.digest != group.majority]
        said = sorted((each for _, each in odd if each.node == node), key=lambda ballot: ballot.rank)
        others = {each.digest for group, _ in odd for each in group.ballots if each.node != node}
        return Evidence(
            node=node,
            ranks=tuple(each.rank for each in said),
            step=self.version.number,
            found=Found.OUTVOTED,
            digests=tuple(in_hex(each.digest) for each in said),
            others=tuple(sorted(map(in_hex, others))),
        )


class Found(Enum):
    """How a node was found to have computed, kept or copied something wrong."""

    OUTVOTED = "outvoted"
    CHANGED = "changed"
    REPEATED = "repeated"  # it says the same each time, and two other nodes say something else


class Evidence(Value, frozen=True, kw_only=True):
    """What a node is said to be at fault for."""

    node: str
    ranks: tuple[int, ...]
    step: int
    found: Found
    digests: tuple[str, ...]  # of its ranks; where it has changed, what it said the first time
    others: tuple[str, ...]  # that its ranks' replicas have said; where it has changed, what it said the second time
    confirmed: int | None = None  # the newest step in which another node has computed the same as this one

    @property
    def reason(self) -> str:
        ranks = ", ".join(map(str, self.ranks))
        if self.found is Found.OUTVOTED:
            return f"rank {ranks} holds other state than all its replicas after step {self.step}"
        if self.found is Found.REPEATED:
            since = f"since step {self.confirmed}" if self.confirmed is not None else "before"
            return (
                f"rank {ranks} computes step {self.step} otherwise than two other nodes, each time that it does. What "
                f"it has computed {since} may be wrong as well"
            )
        return f"rank {ranks} computed something else when step {self.step} was computed again from the same version"


def in_hex(digest: Digest) -> str:
    return f"{digest[1]:016x}"


def differing_groups(ballots: Mapping[int, Ballot]) -> tuple[Group, ...]:
    """Every rank is compared with the first of its peers that votes, so all that hold the same are compared with each
    other: by one look at each rank, for there may be thousands."""
    first = {rank: _first_peer(ballot, ballots) for rank, ballot in ballots.items()}
    if all(other is None or ballots[other].digest == ballots[rank].digest for rank, other in first.items()):
        return ()
    groups = [Group(tuple(ballots[rank] for rank in ranks)) for ranks in _connected(first)]
    return tuple(group for group in groups if len({each.digest for each in group.ballots}) > 1)


def _first_peer(ballot: Ballot, ballots: Mapping[int, Ballot]) -> int | None:
    return next((peer for peer in ballot.peers if peer != ballot.rank and peer in ballots), None)


def _connected(first: Mapping[int, int | None]) -> list[list[int]]:
    """Ranks that are connected by comparisons, in the order of ranks."""
    group_of = {rank: [rank] for rank in sorted(first)}
    for rank, other in first.items():
        if other is not None and group_of[rank] is not group_of[other]:
            larger, smaller = sorted((group_of[rank], group_of[other]), key=len, reverse=True)
            larger += smaller
            group_of.update(dict.fromkeys(smaller, larger))
    return [sorted(group) for group in {id(group): group for group in group_of.values()}.values()]


# --- when the step has been computed again ----------------------------------------------------------------------------


@dataclass(slots=True)
class Suspicion:
    """What everybody has said of one version, from the first time on that replicas differed in it."""

    number: int
    first: dict[tuple[int, str], Digest] = field(default_factory=dict)  # by rank and node: what it said first
    redone: int = 0  # how often the steps to it were computed again
    named: set[str] = field(default_factory=set)  # nodes that were found to be at fault for it

    def note(self, ballots: Iterable[Ballot]) -> None:
        for each in ballots:
            self.first.setdefault((each.rank, each.node), each.digest)

    def changed(self, ballots: Iterable[Ballot]) -> list[Ballot]:
        """Ranks that say something else than the first time, on the same node."""
        return [each for each in ballots if self.first.get((each.rank, each.node), each.digest) != each.digest]

    def nodes_that_changed(self, ballots: Iterable[Ballot]) -> set[str]:
        return {each.node for each in self.changed(ballots)}

    def evidence(self, node: str, ballots: Iterable[Ballot]) -> Evidence:
        """Returns the evidence against a node that has changed what it says."""
        said = [each for each in self.changed(ballots) if each.node == node]
        return Evidence(
            node=node,
            ranks=tuple(each.rank for each in said),
            step=self.number,
            found=Found.CHANGED,
            digests=tuple(in_hex(self.first[each.rank, node]) for each in said),
            others=tuple(sorted({in_hex(each.digest) for each in said})),
        )

    def is_repeated(self, ballots: Iterable[Ballot]) -> bool:
        """Some rank says the same as the first time, on whatever node it is now: so the step can be repeated exactly,
        and it means something if another rank does not."""
        known = {(rank, digest) for (rank, _), digest in self.first.items()}
        return any((each.rank, each.digest) in known for each in ballots)

    def is_repeated_elsewhere(self, vote: Vote) -> bool:
        """A rank that was moved away from a node which was found to be at fault says the same on another one, and its
        replicas still say something else."""
        return any(
            self.first.get((each.rank, node)) == each.digest != group.majority
            for group in vote.groups
            for each in group.ballots
            for node in self.named - {each.node}
        )
