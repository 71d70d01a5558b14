"""Which ranks of a group a backend connects while some ranks have no process (rule 30, carried ranks).

The group keeps its size, and only the backend inside is smaller (backend/group_members.py). All-reduces add up what
the present ranks have, which contains the work of the carried ones. Broadcasts from the group's first rank and barriers
work. What needs one part per rank (all-gathers, reduce-scatters, all-to-alls, gathers, scatters) fails in the backend,
whose number of ranks it does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def present_members(ranks: Sequence[int], carried: Mapping[int, int]) -> list[int] | None:
    """The ranks in the order of the backend. In place of a missing first rank comes its carrier: frameworks broadcast
    from the first rank of a group.

    None: the work of a missing rank is done by a rank outside of this group, so no collective of it would be right.
    """
    if any(carried.get(rank, rank) not in ranks for rank in ranks):
        return None
    first = carried.get(ranks[0], ranks[0])
    return [first, *(rank for rank in ranks if rank not in carried and rank != first)]
