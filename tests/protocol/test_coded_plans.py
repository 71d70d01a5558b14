"""Plans where snapshots are coded: a lost rank is rebuilt from what is left of its group, or is lost."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from notation import address, copies, copy, version

from deadpool.protocol.coordinator.commits.ledger import Ledger
from deadpool.protocol.coordinator.recovery.global_plan import ClusterView, GlobalPlan, NoPlan
from deadpool.protocol.coordinator.recovery.inventory_index import NodeView
from deadpool.protocol.coordinator.recovery.placement import NO_PLACEMENT
from deadpool.protocol.coordinator.recovery.planner import plan
from deadpool.protocol.features.coding.coordinator.placement import CodedRedundancy
from deadpool.protocol.identity import Generation, Layout, Schedule
from deadpool.protocol.messages import Copy, Inventory, JointCopy, Live, Lives, NodeCopies
from deadpool.protocol.schemes import NodeGroup, Scheme

V4 = "v4@1.1"
LAYOUT = Layout(positions=4, per_node=1, holders=1)
GROUP = NodeGroup(positions=(0, 1, 2, 3), parities=2)


def member(position: int, *, parity: bool = True, own: bool = True, coded_before: int | None = None) -> NodeView:
    """`coded_before`: its parity was made of another snapshot of that rank."""
    others = [copy(f"{other}:{V4}") for other in range(4) if other != position]
    others = [_with_digest(each, 7) if each.seal.rank == coded_before else each for each in others]
    kept = JointCopy(
        group=GROUP.of(0, LAYOUT), member=position, version=version(V4), digest=0, copies=NodeCopies.of(others)
    )
    inventory = Inventory(
        live=Lives.of([Live(rank=position, version=version(V4), clean=True)]),
        own=NodeCopies.of(copies(f"{position}:{V4}") if own else ()),
        joint=(kept,) if parity else (),
    )
    name = f"n{position}"
    return NodeView(node=name, data=address(name), position=position, trainers=(), inventory=inventory)


def _with_digest(each: Copy, record: int) -> Copy:
    return replace(each, seal=replace(each.seal, digest=replace(each.seal.digest, record=record)))


def spare(name: str) -> NodeView:
    return NodeView(node=name, data=address(name), position=None, trainers=(), inventory=Inventory())


def planned(*nodes: NodeView) -> GlobalPlan | NoPlan:
    view = ClusterView(
        layout=LAYOUT,
        generation=Generation(1, 2),
        cause="fault-1",
        nodes=nodes,
        watermark=version(V4),
        schedule=Schedule(),
        scheme=Scheme(data=2, parities=2),
        redundancy=CodedRedundancy(),
    )
    return plan(view)


@pytest.mark.parametrize("lost", [(0,), (3,), (0, 1), (1, 3), (2, 3)])
def test_lost_ranks_are_rebuilt_and_their_parities_made_anew(lost: tuple[int, ...]) -> None:
    left = [position for position in range(4) if position not in lost]
    found = planned(*map(member, left), spare("s0"), spare("s1"))
    assert isinstance(found, GlobalPlan) and found.resume == version(V4)
    for rank in lost:
        [order] = found.parts[found.seats[rank]].orders
        [fetch] = order.fetch
        assert fetch.rebuild is not None and fetch.rebuild.member == rank
        assert sorted(block.member for block in fetch.rebuild.data) == left
        newcomers = {found.seats[other] for other in lost if other != rank}
        assert {node for node, _ in order.pushes} == newcomers
    for position in left:
        [order] = found.parts[f"n{position}"].orders
        assert order.keep and {node for node, _ in order.pushes} == {found.seats[rank] for rank in lost}


def test_more_losses_than_parities_are_no_plan() -> None:
    assert isinstance(planned(member(0), spare("s0"), spare("s1"), spare("s2")), NoPlan)


def test_parity_that_is_not_there_may_make_the_difference() -> None:
    without = planned(member(0), member(1, parity=False), spare("s0"), spare("s1"))
    assert isinstance(without, NoPlan) and without.ranks == (2, 3)


def test_snapshot_that_a_survivor_has_lost_counts_as_lost() -> None:
    """It stands clean at the version, and nobody else can be rebuilt from its memory."""
    damaged = planned(member(0, own=False), member(1), member(2), spare("s0"))
    assert isinstance(damaged, GlobalPlan) and damaged.resume == version(V4)
    assert isinstance(planned(member(0, own=False), member(1), spare("s0"), spare("s1")), NoPlan)


def test_parities_that_were_made_of_other_snapshots_are_not_counted_on() -> None:
    """A decoder refuses them: rank 1 was captured again, and one parity is of its former snapshot."""
    one_lost = planned(member(0), member(1), member(2, coded_before=1), spare("s0"))
    assert isinstance(one_lost, GlobalPlan) and one_lost.resume == version(V4)
    [order] = one_lost.parts["s0"].orders
    [fetch] = order.fetch
    assert fetch.rebuild is not None and [block.member for block in fetch.rebuild.joint] == [0, 1]
    two_lost = planned(member(0), member(2, coded_before=1), spare("s0"), spare("s1"))
    assert isinstance(two_lost, NoPlan), "of rank 1 there are two seals, and of each only one parity"


def test_snapshot_that_is_not_the_one_that_was_coded_is_not_counted_on() -> None:
    found = planned(*[member(position, coded_before=1) for position in (0, 1, 2)], spare("s0"))
    assert isinstance(found, GlobalPlan) and found.resume == version(V4)
    [order] = found.parts["s0"].orders
    [fetch] = order.fetch
    assert fetch.rebuild is not None and [block.member for block in fetch.rebuild.data] == [0, 2]


def test_whole_copy_from_before_snapshots_were_coded_is_no_parity() -> None:
    """In a group of two it is of the same rank at the same node, and a version would be complete without parity."""
    layout = Layout(positions=2, per_node=1, holders=1)
    placement = CodedRedundancy().place([None, None], Scheme(data=1, parities=1), NO_PLACEMENT, frozenset())
    ledger = Ledger(layout, ("n0", "n1"), placement)
    for rank in (0, 1):
        ledger.add_sealed(copy(f"{rank}:{V4}"))
        [batch] = NodeCopies.of(copies(f"{rank}:{V4}")).batches
        ledger.add_stored_batch(batch, f"n{1 - rank}")
        ledger.add_stored(rank, f"n{1 - rank}", version(V4))
    assert not ledger.complete(version(V4))
    for rank in (0, 1):
        ledger.add_stored_together((rank,), f"n{1 - rank}", version(V4))
    assert ledger.complete(version(V4))
