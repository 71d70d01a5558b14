"""How many slots the ranks of a node get: by what their versions need, and by what its memory allows."""

from __future__ import annotations

import pytest
from notation import geometry

from deadpool.protocol.agent.copies.slot_growth import AT_MOST, UNUSED_FOR, NodeMemory, SlotGrowth, slots_needed
from deadpool.protocol.agent.copies.slots import RankSlots, Slots, SlotState
from deadpool.protocol.agent.phase import AgentPhase, GenerationState
from deadpool.protocol.causes import Widening
from deadpool.protocol.effects import Allocate, ReleaseSegment
from deadpool.protocol.messages import CaptureCostReport
from deadpool.protocol.seal import Geometry

GB = 1 << 30
STATE = geometry(2600 << 20)
PLENTY = NodeMemory(total_bytes=1000 * GB, available_bytes=900 * GB)


def costs(step_s: float, commit_s: float | None, send_s: float | None = None, every: int = 1) -> CaptureCostReport:
    return CaptureCostReport(rank=0, every=every, step_s=step_s, stall_s=0.0, commit_s=commit_s, send_s=send_s)


@pytest.mark.parametrize(
    ("report", "needed"),
    [
        (costs(0.42, 0.98), 4),  # the H200 with 2.6 GB: one slot kept, three versions on their way
        (costs(5.0, 1.2), 2),  # long steps
        (costs(0.005, 0.02), 5),  # short ones
        (costs(0.42, 0.98, every=4), 2),
        (costs(0.42, 0.98, send_s=0.5), 0),  # more versions would only wait
        (costs(0.42, 0.98, send_s=0.4), 4),
        (costs(0.42, None), 0),
        (costs(0.0, 0.98), 0),
    ],
)
def test_slots_last_until_a_version_is_committed(report: CaptureCostReport, needed: int) -> None:
    assert slots_needed(report) == needed


def test_memory_for_further_slots_is_half_of_it_and_a_tenth_stays_free() -> None:
    memory = NodeMemory(total_bytes=100, available_bytes=70)
    assert memory.left_for_slots(0) == 50
    assert memory.left_for_slots(30) == 20
    assert memory.left_for_slots(60) == 0
    assert NodeMemory(total_bytes=100, available_bytes=25).left_for_slots(0) == 15
    assert NodeMemory(total_bytes=100, available_bytes=5).left_for_slots(0) == 0
    assert NodeMemory(total_bytes=100, available_bytes=4).is_short
    assert not NodeMemory(total_bytes=100, available_bytes=5).is_short


class Node:
    """Some ranks' own slots on a node that runs, whose memory answers at once."""

    def __init__(self, ranks: int = 1, memory: NodeMemory | None = PLENTY, asked: int = 0) -> None:
        self.out: list = []
        current = GenerationState()
        current.phase = AgentPhase.RUNNING
        self.slots = Slots(self.out)
        self.growth = SlotGrowth(current, self.slots)
        self.growth.configure(asked)
        self.slots._seated = frozenset(range(ranks))
        if memory is not None:
            self.growth.on_memory(memory)
        for rank in range(ranks):
            self.declare(rank, STATE)
        self.settle()

    def declare(self, rank: int, state: Geometry) -> None:
        self.slots.geometry[rank] = state
        self.slots.ensure_segment(self.slots.own_of(rank), state)

    def settle(self) -> None:
        """Until nothing is allocated any more."""
        while self.out:
            effect = self.out.pop(0)
            if isinstance(effect, Allocate):
                self.slots.on_allocated(effect.segment)
            self.growth.advance()

    def miss(self, rank: int = 0) -> None:
        self.slots.own[rank].lacked = True
        self.growth.advance()
        self.settle()

    def count(self, rank: int = 0) -> int:
        return self.slots.own[rank].count(self.slots.geometry[rank])

    def use(self, count: int, *, idle: int) -> None:
        """Versions come, and so many slots stay unused."""
        own = self.slots.own[0]
        for slot in list(own.by_ref.values()):
            slot.state = SlotState.SEALED
        for slot in list(own.by_ref.values())[:idle]:
            slot.state = SlotState.FREE
        for _ in range(count):
            own.note_use()
        self.growth.advance()


def test_each_rank_begins_with_three() -> None:
    node = Node(ranks=8)
    assert [node.count(rank) for rank in range(8)] == [3] * 8


def test_exactly_as_many_as_were_asked_for() -> None:
    node = Node(asked=2)
    for _ in range(5):
        node.miss()
    node.growth.on_costs([costs(0.1, 5.0)])
    node.growth.advance()
    assert node.count() == 2 and node.growth.report() is None


def test_commits_that_take_long_are_a_reason_for_more() -> None:
    node = Node()
    node.growth.on_costs([costs(0.42, 0.98)])
    node.growth.advance()
    node.settle()
    assert node.count() == 4
    node.growth.on_costs([costs(0.42, 0.5)])
    node.growth.advance()
    assert node.count() == 4, "a slow moment leaves slots behind, which go when they are not needed for long"


def test_a_rank_has_at_most_eight() -> None:
    node = Node()
    for _ in range(20):
        node.miss()
    assert node.count() == AT_MOST
    report = node.growth.report()
    assert report is not None and (report.at_most, report.limit) == (AT_MOST, Widening.SLOTS)


def test_no_more_where_sending_is_too_slow() -> None:
    node = Node()
    node.growth.on_costs([costs(0.42, 9.0, send_s=0.9)])
    node.miss()
    assert node.count() == 3
    node.growth.on_costs([costs(0.42, 0.9, send_s=0.3)])
    node.miss()
    assert node.count() == 4


def test_without_a_look_at_memory_there_are_two() -> None:
    assert Node(memory=None).count() == 2


def test_little_memory_is_shared_and_told() -> None:
    """A cgroup of 64 GB with eight ranks of 2.6 GB: 2 slots of each are 41 GB, above the half that copies may take."""
    node = Node(ranks=8, memory=NodeMemory(total_bytes=64 * GB, available_bytes=60 * GB))
    node.miss()
    assert [node.count(rank) for rank in range(8)] == [2] * 8
    report = node.growth.report()
    assert report is not None and (report.least, report.at_most, report.limit) == (2, 2, Widening.MEMORY)
    assert report.arena_bytes == 32 * GB


def test_several_agents_on_one_machine_leave_a_tenth_of_it() -> None:
    """What others take is not available: each look at memory shows it."""
    node = Node(memory=NodeMemory(total_bytes=100 * GB, available_bytes=11 * GB))
    assert node.count() == 2
    node.growth.on_memory(NodeMemory(total_bytes=100 * GB, available_bytes=14 * GB))
    node.growth.advance()
    node.settle()
    assert node.count() == 3


def test_slots_are_given_back_where_memory_becomes_short() -> None:
    node = Node()
    for _ in range(3):
        node.miss()
    assert node.count() == 6
    for rest in (5, 4, 3, 2, 2):
        node.growth.on_memory(NodeMemory(total_bytes=100 * GB, available_bytes=GB))
        assert node.count() == rest
    assert sum(isinstance(effect, ReleaseSegment) for effect in node.out) == 4
    node.out.clear()
    node.miss()
    assert node.count() == 2, "none is taken as long as memory is short"
    node.growth.on_memory(PLENTY)
    node.miss()
    assert node.count() >= 3


def test_slot_that_is_in_use_goes_when_it_is_free() -> None:
    node = Node()
    own = node.slots.own[0]
    newest = own.single_segments(STATE)[-1]
    slot = next(slot for ref, slot in own.by_ref.items() if ref.segment == newest)
    slot.state = SlotState.SEALED
    node.growth.on_memory(NodeMemory(total_bytes=100 * GB, available_bytes=GB))
    assert node.out == [] and node.count() == 2
    assert [own.take(STATE, SlotState.GRANTED) is not None for _ in range(3)] == [True, True, False]
    own.free(slot)
    node.slots.release_given_back()
    assert node.out == [ReleaseSegment(segment=newest)] and len(own.by_ref) == 2


def test_slots_that_stay_unused_for_long_are_given_back() -> None:
    node = Node()
    for _ in range(5):
        node.miss()
    assert node.count() == 8
    node.use(UNUSED_FOR - 1, idle=5)
    assert node.count() == 8
    node.use(1, idle=5)
    assert node.count() == 7
    node.use(UNUSED_FOR, idle=1)
    assert node.count() == 7, "one that is free is no surplus: the next version needs it"
    for _ in range(9):
        node.use(UNUSED_FOR, idle=len(node.slots.own[0].by_ref))
        node.slots.release_given_back()
    assert node.count() == 3


def test_state_that_grows_keeps_as_many_slots() -> None:
    node = Node()
    for _ in range(2):
        node.miss()
    assert node.count() == 5
    node.declare(0, geometry(3000 << 20))
    node.settle()
    assert node.count() == 5
    node.slots.release_outgrown()
    assert {slot.geometry for slot in node.slots.own[0].by_ref.values()} == {geometry(3000 << 20)}


def test_single_slot_of_an_earlier_geometry_grows_again() -> None:
    """Found by the simulator: a slot that was on its way when the state changed was the only one when it changed back,
    and the rank had one slot for ever."""
    node = Node()
    own = node.slots.own[0]
    node.slots.allocate(own, STATE, 1)
    node.declare(0, geometry(100))
    node.slots.release_outgrown()
    node.settle()
    assert own.count(STATE) == 1
    node.declare(0, STATE)
    node.growth.advance()
    node.settle()
    assert node.count() == 3


def test_ranks_that_a_spare_has_rehearsed_do_not_grow() -> None:
    node = Node()
    node.slots.geometry[7] = STATE
    node.slots.ensure_segment(node.slots.own_of(7), STATE)
    node.settle()
    assert node.count(7) == 2


def test_holder_without_a_free_slot_gets_one_more() -> None:
    node = Node()
    node.slots._holds, node.slots.held_geometry[5] = frozenset({5}), STATE
    held: RankSlots = node.slots.held_of(5)
    node.slots.ensure_segment(held, STATE)
    node.settle()
    assert held.count(STATE) == 3
    assert [held.take(STATE, SlotState.ARRIVING) is not None for _ in range(4)] == [True, True, True, False]
    node.growth.advance()
    node.settle()
    assert held.count(STATE) == 4
