"""Which positions are coded together: groups of nodes that are apart as far as racks allow.

Groups are as large as the scheme allows and as equal as the number of positions allows, so a job whose size is no
multiple of a group has somewhat smaller groups: they need more memory, and never survive less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from deadpool.protocol.coordinator.recovery.placement import Rack, domains
from deadpool.protocol.schemes import NodeGroup, Scheme


def form_groups(racks: Sequence[Rack], scheme: Scheme, before: tuple[NodeGroup, ...] = ()) -> tuple[NodeGroup, ...]:
    """`before`: groups of the plan before, of the same positions and the same scheme. They stay unless others survive
    the loss of a rack better: with a new group every parity of it has to be made anew."""
    made = _deal(racks, scheme)
    apart = domains(racks)
    return before if before and _beyond_repair(before, apart) <= _beyond_repair(made, apart) else made


def _deal(racks: Sequence[Rack], scheme: Scheme) -> tuple[NodeGroup, ...]:
    """Positions are dealt out rack by rack, one to each group in turn: no other way puts fewer of a rack together."""
    apart = domains(racks)
    order = {domain: index for index, domain in enumerate(dict.fromkeys(apart))}
    ring = sorted(range(len(racks)), key=lambda position: order[apart[position]])
    count = scheme.group_count(len(ring))
    return tuple(
        NodeGroup(positions=tuple(sorted(ring[index::count])), parities=scheme.parities) for index in range(count)
    )


def _beyond_repair(groups: tuple[NodeGroup, ...], apart: Sequence[Rack | int]) -> int:
    """Members that fail together with more of their group than its parities make up for."""
    together = [(Counter(apart[position] for position in group.positions), group.parities) for group in groups]
    return sum(max(0, count - parities) for counts, parities in together for count in counts.values())
