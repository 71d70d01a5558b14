"""Where state may come from: what is evidence, what is only bytes, what is neither."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs
from notation import address, copies, copy, lives, version

from deadpool.protocol.coordinator.recovery.global_plan import ClusterView, GlobalPlan, NoPlan
from deadpool.protocol.coordinator.recovery.inventory_index import NodeView
from deadpool.protocol.coordinator.recovery.planner import plan
from deadpool.protocol.identity import Generation, Layout, Schedule
from deadpool.protocol.messages import Copy, Inventory, Lives, NodeCopies, TrainerInfo
from deadpool.protocol.seal import Digest

V1 = "v1@1.1"


def node(name: str, position: int | None, live: str = "", own: str = "", held: str = "") -> NodeView:
    inventory = Inventory(live=Lives.of(lives(live)), own=NodeCopies.of(copies(own)), held=NodeCopies.of(copies(held)))
    return NodeView(node=name, data=address(name), position=position, trainers=(), inventory=inventory)


def view(*nodes: NodeView, watermark: str | None = V1, committed: bool = True) -> ClusterView:
    return ClusterView(
        layout=Layout(positions=2, per_node=1, holders=1),
        generation=Generation(1, 2),
        cause="fault-1",
        nodes=nodes,
        watermark=version(watermark) if watermark else None,
        schedule=Schedule(),
        committed=committed,
    )


def replicated(rank: int, *, digest: int, full: bool) -> Copy:
    """A copy with a replica region; a holder has everything but its bytes."""
    whole = copy(f"{rank}:{V1}")
    seal = structs.replace(
        whole.seal,
        extent=structs.replace(whole.seal.extent, replica_bytes=50),
        digest=Digest(record=0, unique=0, replica=digest),
        full=full,
    )
    return structs.replace(whole, seal=seal, geometry=structs.replace(whole.geometry, replica_bytes=50 if full else 0))


def with_copies(base: NodeView, *, own: tuple[Copy, ...] = (), held: tuple[Copy, ...] = ()) -> NodeView:
    return structs.replace(
        base, inventory=structs.replace(base.inventory, own=NodeCopies.of(own), held=NodeCopies.of(held))
    )


def test_replica_gives_bytes_to_a_holder_that_lacks_them() -> None:
    survivor = with_copies(
        node("n0", 0), own=(replicated(0, digest=7, full=True),), held=(replicated(1, digest=7, full=False),)
    )
    found = plan(view(survivor, node("s0", None)))
    assert isinstance(found, GlobalPlan)
    fetch = found.parts["s0"].orders[0].fetch[0]
    assert [source.rank for group in fetch.groups for source in group] == [1, 0]
    assert fetch.copy.geometry.replica_bytes == 50, "the newcomer needs room for what the holder had none for"
    assert fetch.copy.peers == (0,)


def test_replica_with_another_digest_is_not_used() -> None:
    survivor = with_copies(
        node("n0", 0), own=(replicated(0, digest=8, full=True),), held=(replicated(1, digest=7, full=False),)
    )
    found = plan(view(survivor, node("s0", None)))
    assert isinstance(found, NoPlan)
    assert found.ranks == (1,)


def test_replica_is_never_evidence() -> None:
    """Rank 0 holds the same bytes, but no node has rank 1's own seal."""
    survivor = with_copies(node("n0", 0), own=(replicated(0, digest=7, full=True),))
    found = plan(view(survivor, node("s0", None)))
    assert isinstance(found, NoPlan)
    assert found.ranks == (1,)


def test_two_births_of_one_number_are_not_common() -> None:
    found = plan(view(node("n0", 0, own="0:v2@1.1,0:v1@1.1"), node("n1", 1, own="1:v2@1.0,1:v1@1.1")))
    assert isinstance(found, GlobalPlan)
    assert found.resume == version(V1)


def test_live_state_counts_only_if_clean() -> None:
    found = plan(view(node("n0", 0, live="0:v2@1.1~", own=f"0:{V1}"), node("n1", 1, live="1:v2@1.1", own=f"1:{V1}")))
    assert isinstance(found, GlobalPlan)
    assert found.resume == version(V1)


def test_watermark_that_a_rank_has_lost_is_no_floor() -> None:
    found = plan(view(node("n0", 0, own="0:v2@1.1"), node("n1", 1, own=f"1:v2@1.1,1:{V1}")))
    assert isinstance(found, GlobalPlan)
    assert found.permit.watermark == version("v2@1.1")
    assert found.permit.keep_from == 3


def test_resume_newer_than_the_floor_is_pending() -> None:
    found = plan(view(node("n0", 0, own=f"0:v3@1.1,0:{V1}"), node("n1", 1, own=f"1:v3@1.1,1:{V1}")))
    assert isinstance(found, GlobalPlan)
    assert (found.permit.watermark, found.permit.keep_from) == (version(V1), 3)


def test_no_copies_is_said_before_a_spare_is_waited_for() -> None:
    found = plan(view(node("n0", 0, own=f"0:{V1}")))
    assert isinstance(found, NoPlan)
    assert found.ranks == (1,)
    assert found.missing_nodes == 0


def test_young_job_starts_over() -> None:
    found = plan(view(node("n0", 0, own=f"0:{V1}"), node("s0", None), committed=False))
    assert isinstance(found, GlobalPlan)
    assert found.resume is None


def test_the_spare_that_rehearsed_the_rank_is_taken() -> None:
    cold = node("s0", None)
    parked = TrainerInfo(trainer="s1.0", state="parked", rank=1)
    warm = structs.replace(node("s1", None), trainers=(parked,))
    found = plan(view(node("n0", 0, own=f"0:{V1}", held=f"1:{V1}"), cold, warm))
    assert isinstance(found, GlobalPlan)
    assert found.seats == ("n0", "s1")


# --- nodes that nothing changes for ----------------------------------------------------------------------------------

BEFORE = Generation(1, 1)


def ring(*nodes: NodeView, size: int) -> ClusterView:
    """The copies of each node are at the next one."""
    return replace(view(*nodes), layout=Layout(positions=size, per_node=1, holders=1))


def settled(position: int, size: int, planned_in: Generation | None = BEFORE) -> NodeView:
    """Lives at V1, has its copy, and that of the one before it."""
    found = node(f"n{position}", position, f"{position}:{V1}", f"{position}:{V1}", f"{(position - 1) % size}:{V1}")
    return structs.replace(found, planned_in=planned_in)


def test_only_who_sends_to_a_newcomer_is_told_more_than_to_stay() -> None:
    before = plan(ring(*(settled(position, 5) for position in range(5)), size=5))
    assert isinstance(before, GlobalPlan)
    assert {part.as_of for part in before.parts.values()} == {None}, "no node was told anything yet"
    before = replace(before, generation=BEFORE)
    left = [settled(position, 5) for position in range(4)]
    found = plan(replace(ring(*left, node("s0", None), size=5), before=before, placement=before.placement))
    assert isinstance(found, GlobalPlan) and found.seats == ("n0", "n1", "n2", "n3", "s0")
    assert {name for name, part in found.parts.items() if part.as_of == BEFORE} == {"n0", "n1", "n2"}
    assert found.parts["n3"].holders[0].node == "s0"
    assert found.parts["n1"] is found.parts["n2"], "they are told the same"


def test_who_has_not_heard_the_plan_before_is_told_everything() -> None:
    nodes = [settled(position, 4) for position in range(4)]
    before = plan(ring(*nodes, size=4))
    assert isinstance(before, GlobalPlan)
    before = replace(before, generation=BEFORE)
    nodes[0] = settled(0, 4, planned_in=None)
    found = plan(replace(ring(*nodes, size=4), before=before, placement=before.placement))
    assert isinstance(found, GlobalPlan)
    assert {name for name, part in found.parts.items() if part.as_of == BEFORE} == {"n1", "n2"}, (
        "n3 sends its copies there"
    )


def test_who_has_something_to_send_is_told_so() -> None:
    nodes = [settled(position, 4) for position in range(4)]
    before = plan(ring(*nodes, size=4))
    assert isinstance(before, GlobalPlan)
    before = replace(before, generation=BEFORE)
    nodes[2] = structs.replace(nodes[2], inventory=structs.replace(nodes[2].inventory, held=NodeCopies()))
    found = plan(replace(ring(*nodes, size=4), before=before, placement=before.placement))
    assert isinstance(found, GlobalPlan)
    assert {name for name, part in found.parts.items() if part.as_of is None} == {"n1"}
    assert found.parts["n1"].orders[0].pushes == (("n2", version(V1)),)
