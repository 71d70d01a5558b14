"""Which positions do without processes, and which carry them (rule 30, carried ranks)."""

from __future__ import annotations

import pytest
from benches import job_state
from msgspec.structs import replace
from notation import address

from deadpool.protocol.agent.copies.slots import Slots, SlotState
from deadpool.protocol.coordinator.commits.ledger import Ledger
from deadpool.protocol.coordinator.recovery.inventory_index import NodeView
from deadpool.protocol.coordinator.recovery.placement import place
from deadpool.protocol.features.shrink.coordinator.carriers import Shrunk, place_shrunk, shrink
from deadpool.protocol.identity import Generation, Layout, Schedule, Version
from deadpool.protocol.messages import Copy, Inventory, Permit, Shares, TrainerInfo
from deadpool.protocol.schemes import Scheme
from deadpool.protocol.seal import Digest, Extent, Geometry, Seal


def job(positions: int, *, block: int = 1, per_node: int = 1, lost: tuple[int, ...] = (), refused: str = ""):
    """Replicas of `block` neighbouring ranks; the nodes at `lost` positions are gone."""
    layout = Layout(positions=positions, per_node=per_node, holders=1)
    seats = [None if position in lost else f"n{position}" for position in range(positions)]
    nodes = []
    for position, name in enumerate(seats):
        if name is None:
            continue
        trainers = [TrainerInfo(trainer=f"t{r}", state="seated", rank=r, shares=_shares(r, layout, block, refused))
                    for r in layout.ranks_at(position)]  # fmt: skip
        nodes.append(
            NodeView(node=name, data=address(name), position=position, trainers=tuple(trainers), inventory=Inventory())
        )
    return layout, seats, nodes


def _shares(rank: int, layout: Layout, block: int, refused: str) -> Shares:
    first = rank - rank % block
    replicas = (rank % block, layout.world_size - block + rank % block + 1, block)
    return Shares(replicas=replicas, block=(first, first + block, 1), refused=refused)


def test_lost_positions_are_spread_over_the_others():
    found = shrink(*job(6, lost=(1, 2, 4)))
    assert isinstance(found, Shrunk)
    assert sorted(found.carried) == [1, 2, 4]
    assert sorted(found.carried.values()) == [0, 3, 5], "each carries one"
    assert all(found.seats[p] == found.seats[carrier] for p, carrier in found.carried.items())


def test_healthy_node_of_a_broken_replica_has_no_seat():
    found = shrink(*job(4, block=2, lost=(3,)))
    assert isinstance(found, Shrunk)
    assert found.seats == ("n0", "n1", "n0", "n1") and found.carried == {2: 0, 3: 1}


def test_nodes_of_two_broken_replicas_make_one_whole():
    found = shrink(*job(6, block=2, lost=(1, 4)))
    assert isinstance(found, Shrunk)
    assert found.seats[:4] == ("n0", "n5", "n2", "n3"), "n5 takes position 1"
    assert set(found.carried) == {4, 5} and set(found.seats) == {"n0", "n5", "n2", "n3"}
    assert found.carried[5] - found.carried[4] == 1, "both halves go to the same replica"


def test_shards_inside_of_a_node():
    found = shrink(*job(3, block=2, per_node=2, lost=(0,)))
    assert isinstance(found, Shrunk)
    assert found.carried == {0: 1}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"positions": 2, "lost": (1,)}, "1 nodes would be left"),
        ({"positions": 4, "block": 4, "lost": (1,)}, "0 nodes would be left"),
        ({"positions": 3, "lost": (1,), "refused": "no replicas"}, "no replicas"),
        ({"positions": 3, "block": 2, "per_node": 4, "lost": (1,)}, None),
        ({"positions": 4, "block": 3, "per_node": 3, "lost": (1,)}, None),
        ({"positions": 3, "block": 4, "per_node": 4, "lost": (1,)}, None),
    ],
)
def test_why_not(arguments, reason):
    found = shrink(*job(**arguments))
    assert isinstance(found, Shrunk) if reason is None else (isinstance(found, str) and reason in found), found


def test_replica_that_ends_in_the_middle_of_a_node_cannot_be_carried():
    found = shrink(*job(3, block=3, per_node=2, lost=(1,)))
    assert found == "the ranks of one node belong to several replicas that reach over other nodes"


def test_no_copy_lies_on_the_node_of_its_rank():
    layout, seats, nodes = job(6, lost=(1, 2))
    found = shrink(layout, seats, nodes)
    assert isinstance(found, Shrunk)
    placement = place_shrunk([None] * 6, Scheme(copies=2), found.carried)
    for position in range(6):
        holders = [found.seats[holder] for holder in placement.of(position)]
        assert len({found.seats[position], *holders}) == 3, (position, holders)


def test_bytes_that_were_sent_while_one_node_had_all_replicas_count_for_the_newcomer():
    """Rank 1 was carried by rank 0, whose copy counts on no peer. Its newcomer's copy counts on rank 0."""
    layout = Layout(positions=2, per_node=1, holders=1)
    ledger = Ledger(layout, ("n0", "n1"), place([None, None], Scheme(copies=1)))
    version = Version(Generation(1, 2), 4)
    ledger.add_sealed(_copy(0, version, replica=7))
    ledger.add_sealed(_copy(1, version, replica=7, peers=(0, 1)))
    assert ledger.unmatched(version) == ()
    ledger.add_sealed(_copy(0, version, replica=8))
    assert ledger.unmatched(version) == (1,), "the bytes differ"


def _copy(rank: int, version: Version, *, replica: int, peers: tuple[int, ...] = ()) -> Copy:
    extent = Extent(record_bytes=1, unique_bytes=0, replica_bytes=10)
    seal = Seal(
        rank=rank, version=version, extent=extent, digest=Digest(record=1, unique=0, replica=replica), full=True
    )
    return Copy(seal=seal, geometry=Geometry(record_capacity=1, unique_bytes=0, replica_bytes=10), peers=peers)


def test_what_an_earlier_process_said_of_its_shares_counts():
    layout, seats, nodes = job(3, lost=(1,))
    known = {rank: _shares(rank, layout, 1, "") for rank in (0, 2)}
    starting = (TrainerInfo(trainer="t", state="starting", rank=None),)
    ended = [replace(node, trainers=starting) for node in nodes]
    assert isinstance(shrink(layout, seats, ended), str)
    assert isinstance(shrink(layout, seats, ended, known=known), Shrunk)


@pytest.mark.parametrize("number, excused", [(4, True), (5, False)])
def test_replicas_at_one_home_are_excused_only_in_the_version_that_the_plan_resumed_from(number: int, excused: bool):
    """Of every later version their bytes are sent: where they are not, the user's claim is wrong."""
    resume = Version(Generation(1, 2), 4)
    state = job_state(Layout(positions=2, per_node=1, holders=0))
    permit = Permit(generation=Generation(1, 2), watermark=None, keep_from=0, schedule=Schedule())
    ledger = Ledger(state.layout, ("n0", "n0"), place([None, None], Scheme()))
    state.commits.take_over(permit, resume, (Schedule(),), ledger)
    state.commits.count = 0  # a young job
    version = Version(Generation(1, 2), number)
    ended = [state.commits.on_sealed(_copy(rank, version, replica=7, peers=(0, 1))) for rank in (0, 1)]
    assert (ended[-1] is None) is excused


def test_one_of_two_copies_on_the_node_of_a_carrier_is_damaged_and_the_other_stays():
    """It held copies of the rank before it became its home."""
    slots, version = Slots([]), Version(Generation(1, 2), 4)
    copy = _copy(0, version, replica=7)
    for segment, kept in enumerate((slots.own_of(0), slots.held_of(0))):
        kept.add(segment, copy.geometry, 1)
        slot = kept.take(copy.geometry, SlotState.ARRIVING)
        assert slot is not None
        kept.seal(slot.ref, copy)
    slots.drop_damaged(0, version)
    assert slots.own_of(0).find(version) is None and slots.held_of(0).find(version) is not None
    slots.drop_damaged(0, version)
    assert slots.held_of(0).find(version) is None
