"""Which ranks of a group its backend connects. By itself all of them; who rebuilds groups may say otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

MembersOf = Callable[[Sequence[int]], list[int] | None]
"""Returns, of the ranks of a group, those that have a process, in the order of the backend. The group keeps its size,
since scripts and frameworks have read it and divide by it. None: no collective of this group would be right."""


def all_members(ranks: Sequence[int]) -> list[int]:
    return list(ranks)
