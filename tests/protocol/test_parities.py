"""Parities that one node keeps: they are told apart by their groups."""

from __future__ import annotations

from notation import copy, version

from deadpool.protocol.agent.copies.slots import Slots, SlotState
from deadpool.protocol.messages import SlotRef
from deadpool.protocol.schemes import RankGroup

V4 = "v4@1.1"
FORMER, PRESENT = RankGroup(ranks=(0, 1, 2), parities=1), RankGroup(ranks=(0, 1, 3), parities=1)


def slots_with(*groups: RankGroup) -> tuple[Slots, list[SlotRef]]:
    """Each with a sealed parity that is kept under rank 0, all of one version."""
    slots, refs = Slots([]), []
    slots.slots_per_segment = 1
    for group in groups:
        rank_slots = slots.joint_of((group, 0))
        slots.ensure_segment(rank_slots, copy(f"0:{V4}").geometry)
        slots.on_allocated(len(refs) + 1)
        slot = rank_slots.take(copy(f"0:{V4}").geometry, SlotState.ARRIVING)
        assert slot is not None
        rank_slots.seal(slot.ref, copy(f"0:{V4}"))
        refs.append(slot.ref)
    return slots, refs


def test_parity_is_found_by_its_group() -> None:
    """A plan names the group. After a change of groups its keeper has parities of one version for both."""
    slots, refs = slots_with(FORMER, PRESENT)
    found = [slots.find_joint(group, 0, version(V4)) for group in (FORMER, PRESENT)]
    assert [slot.ref for slot in found if slot is not None] == refs
    assert slots.find_joint(RankGroup(ranks=(0, 2), parities=1), 0, version(V4)) is None
