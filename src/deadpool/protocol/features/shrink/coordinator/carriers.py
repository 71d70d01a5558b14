"""Where no spare is left: which positions do without a process, and which other positions carry their ranks.

Rule 30, carried ranks: a rank that has no process is carried by the process of a rank that holds the same tensors. It
does the carried rank's share of every step too, and its node is the home of the carried rank's copies. So every rank
keeps its number, its seals and its holders, and no other rule has to know of it.

Ranks that need each other within a share form a *block*; blocks are whole or absent. Nodes of a block that is given up
complete other blocks, or are spares from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from deadpool.protocol.coordinator.recovery.inventory_index import NodeView
from deadpool.protocol.coordinator.recovery.placement import Placement, Rack, place
from deadpool.protocol.identity import Layout
from deadpool.protocol.messages import Shares
from deadpool.protocol.schemes import Scheme

Block = tuple[int, ...]
"""The positions of the ranks that need each other within a share, in ascending order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """`seats` names the node at each position: for a carried position, the node of the one that carries it."""

    seats: tuple[str, ...]
    carried: dict[int, int]  # position -> the position that carries it


def shrink(
    layout: Layout,
    seats: Sequence[str | None],
    nodes: Iterable[NodeView],
    scheme: Scheme | None = None,
    known: Mapping[int, Shares] | None = None,
) -> Shrunk | str:
    """Seats without the positions that are None here. A string says why the job has to wait for spares.

    `known`: by rank, what earlier processes of it have said.
    """
    scheme = scheme or Scheme(copies=layout.holders)
    if scheme.in_groups:
        return f"snapshots are protected by {scheme}, and carried ranks need whole copies"
    found = _common_shares(layout, {node.node: node for node in nodes}, seats, known or {})
    if isinstance(found, str):
        return found
    rank, shares = found
    blocks = _blocks(layout, rank, shares)
    if isinstance(blocks, str):
        return blocks
    filled = _complete_blocks(blocks, list(seats))
    whole = [block for block in blocks if all(filled[p] is not None for p in block)]
    present = len(whole) * len(blocks[0])
    if not whole or present <= scheme.copies:
        return f"{present} nodes would be left in whole replicas, and {scheme.copies + 1} are needed for copies"
    carried = _carriers(blocks, whole)
    named = [filled[carried.get(position, position)] for position in range(layout.positions)]
    return Shrunk(seats=tuple(node for node in named if node is not None), carried=carried)


def place_shrunk(racks: Sequence[Rack], scheme: Scheme, carried: Mapping[int, int]) -> Placement:
    """Copies go among the positions that have a process. A carried rank's copies go where its carrier's go."""
    present = [position for position in range(len(racks)) if position not in carried]
    among = place([racks[position] for position in present], scheme)
    holders = {p: tuple(present[i] for i in among.of(index)) for index, p in enumerate(present)}
    ordered = [holders[carried.get(position, position)] for position in range(len(racks))]
    return Placement(racks=tuple(racks), holders=tuple(ordered), scheme=scheme)


# --- what ranks have said of their layout -----------------------------------------------------------------------------


def _common_shares(
    layout: Layout, nodes: Mapping[str, NodeView], seats: Sequence[str | None], known: Mapping[int, Shares]
) -> tuple[int, Shares] | str:
    """One rank's shares, which stand for those of all. Every rank that is left has to have asked for them, in this
    process or in an earlier one: a process that is new has not run yet, and one that has ended says nothing."""
    found: dict[int, Shares] = {}
    for position, name in enumerate(seats):
        node = nodes.get(name) if name is not None else None
        if node is None or node.position != position:
            continue  # a newcomer: its script is that of all others
        ranks = layout.ranks_at(position)
        told = {t.rank: t.shares for t in node.trainers if t.state == "seated" and t.rank in ranks}
        for rank in ranks:
            shares = told.get(rank) or known.get(rank)
            if shares is None and rank not in told:
                continue  # its process has ended before it said anything, and another will come
            if shares is None:
                return f"rank {rank} does not take its work from step.shares()"
            if shares.refused:
                return shares.refused
            found[rank] = shares
    if not found:
        return "no rank is left that could carry another"
    rank = min(found)
    return rank, found[rank]


def _blocks(layout: Layout, rank: int, shares: Shares) -> list[Block] | str:
    """All blocks, by the one that a rank is in: replicas of its ranks lie equally far away in every other block."""
    replicas, block = range(*shares.replicas), range(*shares.block)
    blocks = [tuple(member + (replica - rank) for member in block) for replica in replicas]
    if sorted(r for each in blocks for r in each) != list(range(layout.world_size)):
        return "replicas and the groups inside of them do not make up the whole job"
    positions = [tuple(sorted({layout.position_of(r) for r in each})) for each in blocks]
    if sorted(p for each in dict.fromkeys(positions) for p in each) != list(range(layout.positions)):
        return "the ranks of one node belong to several replicas that reach over other nodes"
    return list(dict.fromkeys(positions))


# --- which blocks stay ------------------------------------------------------------------------------------------------


def _complete_blocks(blocks: list[Block], seats: list[str | None]) -> list[str | None]:
    """Nodes of broken blocks complete as many of these blocks as they can, those first that lack the fewest."""
    broken = [block for block in blocks if any(seats[p] is None for p in block)]
    left = sorted(broken, key=lambda block: sum(seats[p] is None for p in block))
    count = sum(seats[p] is not None for block in broken for p in block) // len(blocks[0])
    kept, given_up = left[:count], left[count:]
    free = [seats[p] for block in given_up for p in block if seats[p] is not None]
    for block in given_up:
        for position in block:
            seats[position] = None
    for position in (p for block in kept for p in block if seats[p] is None):
        seats[position] = free.pop(0)
    return seats


def _carriers(blocks: list[Block], whole: list[Block]) -> dict[int, int]:
    """Each absent block goes to the whole one that carries the fewest, the next one in the ring of blocks first."""
    loads = dict.fromkeys(whole, 0)
    carried: dict[int, int] = {}
    for index, block in enumerate(blocks):
        if block in loads:
            continue
        ring = [*blocks[index + 1 :], *blocks[:index]]
        carrier = min((each for each in ring if each in loads), key=lambda each: loads[each])
        loads[carrier] += 1
        carried.update(zip(block, carrier, strict=True))
    return carried
