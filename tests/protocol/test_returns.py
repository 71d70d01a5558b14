"""Which node sits where when nodes have come back, and what is worth keeping when there is no plan."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs
from notation import address, lives, version
from test_planner import V1, node, replicated, view, with_copies

from deadpool.protocol.coordinator.leaving.ending import RemainingCopy, remaining_copies
from deadpool.protocol.coordinator.membership.members import Member, steps_lost
from deadpool.protocol.coordinator.recovery.global_plan import GlobalPlan, NoPlan
from deadpool.protocol.coordinator.recovery.planner import plan
from deadpool.protocol.messages import Inventory, Lives


def seats(*nodes) -> tuple[str, ...]:
    found = plan(view(*nodes))
    assert isinstance(found, GlobalPlan)
    return found.seats


def test_what_an_unseated_node_has_in_memory_counts_for_nothing() -> None:
    survivor = node("n0", 0, live=f"0:{V1}", own=f"0:{V1}")
    assert isinstance(plan(view(survivor, node("n1", None, live=f"1:{V1}"))), NoPlan)
    assert isinstance(plan(view(survivor, node("n1", 1, live=f"1:{V1}"))), GlobalPlan), "seated it would do"


def test_nodes_that_come_back_sit_where_they_sat() -> None:
    first, second = node("n0", None, own=f"0:{V1}"), node("n1", None, own=f"1:{V1}")
    assert seats(second, first) == ("n0", "n1")


def test_returned_node_is_a_source_and_the_warm_spare_sits() -> None:
    survivor = node("n0", 0, live=f"0:{V1}", own=f"0:{V1}")
    found = plan(view(survivor, node("s0", None), node("n1", None, own=f"1:{V1}")))
    assert isinstance(found, GlobalPlan) and found.seats == ("n0", "n1"), "both are cold: it has its copy at home"
    assert found.parts["n1"].orders[0].fetch == ()


def test_quarantined_node_sits_only_where_no_other_is_left() -> None:
    survivor = node("n0", 0, live=f"0:{V1}", own=f"0:{V1}")
    bad = structs.replace(node("n1", None, own=f"1:{V1}"), quarantined=True)
    assert seats(survivor, bad, node("s0", None)) == ("n0", "s0")
    assert seats(survivor, bad) == ("n0", "n1")


def test_copy_from_a_holder_counts_on_the_peers_that_a_returned_node_knows_of() -> None:
    """Without them the other ranks' replicas would seem to be on no other node."""
    survivor = with_copies(node("n1", 1, live=f"1:{V1}"), held=(replicated(0, digest=7, full=False),))
    own = structs.replace(replicated(0, digest=7, full=True), peers=(1,))
    returned = structs.replace(with_copies(node("n0", None), own=(own,)), quarantined=True)
    found = plan(view(survivor, returned, node("s0", None)))
    assert isinstance(found, GlobalPlan) and found.seats == ("s0", "n1")
    (fetch,) = found.parts["s0"].orders[0].fetch
    assert fetch.copy.peers == (1,)


def test_version_that_most_ranks_have_is_kept() -> None:
    newer = "v2@1.1"
    one = node("n0", 0, own=f"0:{newer},0:{V1}", held=f"1:{V1}")
    left = remaining_copies(view(one))
    assert [(each.rank, each.version.number) for each in left] == [(0, 1), (1, 1)]
    assert remaining_copies(view(node("s0", None))) == ()


def test_copy_is_written_by_the_node_that_has_all_of_it() -> None:
    holder = with_copies(node("n0", 0), held=(replicated(1, digest=7, full=False),))
    home = with_copies(node("n1", None), own=(replicated(1, digest=7, full=True),))
    (left,) = remaining_copies(view(holder, home))
    assert isinstance(left, RemainingCopy) and left.node == "n1"


def test_steps_of_an_earlier_generation_are_not_lost_again() -> None:
    def member(name: str, live: str) -> Member:
        inventory = Inventory(live=Lives.of(lives(live)))
        found = Member(node=name, incarnation=name, data=address(name), spare=False, heard=0.0)
        return replace(found, inventory=inventory)

    seated, returned = member("n0", "0:v10@1.2"), member("n1", "1:v13@1.1")
    assert steps_lost([seated, returned], version("v9@1.2")) == 1
    assert steps_lost([seated, returned], version("v8@1.1")) == 5, "computed again now for the first time"
