"""Which state a replica on another node could supply. A pure function of who holds what where."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping


def choose_peers(
    params: Iterable[object],
    replicas: Mapping[int, tuple[int, ...]],
    *,
    rank: int,
    node_of: Callable[[int], int],
) -> tuple[tuple[int, ...], frozenset[int]]:
    """The ranks that share the replica region, own one included, and the ids of the parameters that lie in it.

    One region has one set of peers: the intersection over its parameters. A parameter that would leave no peer on
    another node is unique instead: its copy has to travel.
    """

    def survives_here(ranks: frozenset[int]) -> bool:
        return any(node_of(peer) != node_of(rank) for peer in ranks)

    peers: frozenset[int] | None = None
    members: set[int] = set()
    for param in params:
        holders = frozenset(replicas.get(id(param), ())) | {rank}
        common = holders if peers is None else peers & holders
        if survives_here(common):
            peers = common
            members.add(id(param))
    return tuple(sorted(peers or ())), frozenset(members)
