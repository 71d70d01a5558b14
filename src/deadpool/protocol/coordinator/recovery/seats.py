"""Which node takes which position: survivors stay, spares take what is empty. Seats do not depend on inventories, so
they are known before the fence is acknowledged."""

from __future__ import annotations

from collections.abc import Mapping

from deadpool.protocol.coordinator.recovery.global_plan import ClusterView, NoPlan, Seats
from deadpool.protocol.coordinator.recovery.inventory_index import NodeView
from deadpool.protocol.identity import Layout


def seats_for(view: ClusterView) -> Seats | NoPlan:
    """Chooses the seats of a plan that is made now."""
    found = choose_seats(view)
    return view.vacancies.fill(view, found) if isinstance(found, NoPlan) else Seats(found)


def choose_seats(view: ClusterView, sitting: Mapping[int, str] | None = None) -> tuple[str, ...] | NoPlan:
    """A node keeps its position. An empty position gets the spare that is ready soonest and, among equals, the one
    whose rack moves the fewest copies.

    A node that leaves gives its position to a spare that no empty position needs, or keeps it. A node whose position is
    given away, but that has not left yet, is better than none. A recalled node gets a seat before any spare.

    `view.moves` come before all that, as far as their nodes are there. A node whose position another one takes by them
    is a spare, and the last one that is taken.

    `sitting`: positions of nodes that the view leaves out, because nothing moves them.
    """
    seats: list[str | None] = list(map((sitting or {}).get, range(view.layout.positions)))
    given_up: dict[int, str] = {}
    moves = _moves_of(view)
    seats = [moves.get(position, seat) for position, seat in enumerate(seats)]
    displaced = []
    for node in view.nodes:
        if node.node in moves.values():
            continue
        if node.position in moves:
            displaced.append(node)
        elif node.position is not None and node.leaving:
            given_up[node.position] = node.node
        elif node.position is not None:
            seats[node.position] = node.node
    free = [node for node in view.nodes if node.position is None and node.node not in moves.values()]
    others = [node for node in free if not node.recalled]
    recalled = [node for node in free if node.recalled]
    spares = [node for node in others if not node.leaving]
    parting = [node for node in others if node.leaving]
    for position in (p for p, seat in enumerate(seats) if seat is None and p not in given_up):
        seats[position] = _take(recalled or spares or displaced or parting, view, position)
    healthy = [node for node in spares if not (node.quarantined or node.doubted)]
    for position, stays in sorted(given_up.items()):
        seats[position] = _take(healthy, view, position) or stays
    if None in seats:
        return NoPlan(reason=_no_spare(seats), missing_nodes=seats.count(None), seats=tuple(seats))
    return tuple(seat for seat in seats if seat is not None)


def _moves_of(view: ClusterView) -> dict[int, str]:
    there = {node.node for node in view.nodes}
    return {position: node for position, node in view.moves.items() if node in there}


def _take(spares: list[NodeView], view: ClusterView, position: int) -> str | None:
    if not spares:
        return None
    best = min(spares, key=lambda spare: _preference(spare, view, position))
    spares.remove(best)
    return best.node


def _no_spare(seats: list[str | None]) -> str:
    empty = [str(p) for p, seat in enumerate(seats) if seat is None]
    return f"no spare node left for position {', '.join(empty)}"


def _preference(
    spare: NodeView, view: ClusterView, position: int
) -> tuple[bool, bool, bool, tuple[int, int], bool, int]:
    """A node that has come back sits where it sat, if nothing else makes a difference: its copies are there."""
    was_elsewhere = not any(view.layout.position_of(copy.seal.rank) == position for copy in spare.inventory.own)
    readiness, moves = _readiness(spare, view.layout, position), _moves(spare, view, position)
    return (spare.quarantined, spare.cut_off, spare.doubted, readiness, was_elsewhere, moves)


def _readiness(spare: NodeView, layout: Layout, position: int) -> tuple[int, int]:
    """Fewer ranks to rehearse anew come first, then fewer processes that are still starting."""
    ranks = set(layout.ranks_at(position))
    rehearsed = {t.rank for t in spare.trainers if t.state in ("parked", "rehearsing")}
    starting = sum(t.state == "starting" for t in spare.trainers)
    return (len(ranks - rehearsed), starting)


def _moves(spare: NodeView, view: ClusterView, position: int) -> int:
    """Copies that would have to move because of the rack that this spare stands in."""
    return view.placement.would_move(position, spare.rack) if view.placement.racks else 0
