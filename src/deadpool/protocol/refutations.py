"""Copies that are not what was sealed, as nodes found when they were given them. Part of the coordinator's core."""

from __future__ import annotations

from dataclasses import replace

from deadpool.protocol.identity import Version
from deadpool.protocol.messages import Copy, Inventory
from deadpool.protocol.outbox import Outbox


class Refutations:
    """Kept for as long as this coordinator is in office; its successor finds out anew."""

    def __init__(self) -> None:
        self._copies: set[tuple[str, int, Version]] = set()

    def note(self, by: str, refuted: tuple[tuple[str, int, Version], ...], out: Outbox) -> None:
        for node, rank, version in refuted:
            self._copies.add((node, rank, version))
            out.emit("copy_broken", node=node, rank=rank, step=version.number, found_by=by)

    def without(self, node: str, inventory: Inventory) -> Inventory:
        if not self._copies:
            return inventory

        def sound(copies: tuple[Copy, ...]) -> tuple[Copy, ...]:
            return tuple(c for c in copies if (node, c.seal.rank, c.seal.version) not in self._copies)

        return replace(inventory, own=sound(inventory.own), held=sound(inventory.held))
