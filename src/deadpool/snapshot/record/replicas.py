"""Chooses the state that need not be sent to holders, because a data-parallel replica on another node has it too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping


def choose_peers(
    params: Iterable[object],
    replicas: Mapping[int, tuple[int, ...]],
    *,
    rank: int,
    node_of: Callable[[int], int],
) -> tuple[tuple[int, ...], frozenset[int]]:
    """Returns the ranks that share the replica region, this rank included, and the ids of the parameters in it.

    A region has one set of peers: the intersection over its parameters. A parameter that would leave no peer on another
    node goes into the unique region instead, which is sent to holders.
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
