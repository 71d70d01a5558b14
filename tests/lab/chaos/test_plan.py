"""What a seed draws, and how much of it may come at once."""

from __future__ import annotations

from collections import Counter

from deadpool_lab.chaos.faults import FAULTS, possible
from deadpool_lab.chaos.plan import BURST, IN_RECOVERY, Moment, allows, draw, full_disk
from deadpool_lab.chaos.surroundings.disk import LoopDisk, SharedDisk
from deadpool_lab.chaos.surroundings.network import Loopback, Namespaces

SHARED = SharedDisk("that needs root")
KINDS = ["a", "b", "b", "c"]


def test_same_seed_same_plan_and_another_one_for_another():
    assert draw("1 fsdp2", 30, KINDS) == draw("1 fsdp2", 30, list(reversed(KINDS)))
    assert draw("1 fsdp2", 30, KINDS) != draw("2 fsdp2", 30, KINDS)


def test_more_faults_of_the_same_seed_begin_the_same_way():
    assert draw("1", 50, KINDS)[:10] == draw("1", 10, KINDS)


def test_every_kind_comes_before_one_comes_twice():
    kinds = [intent.kind for intent in draw("7", 8, KINDS)]
    assert set(kinds[:3]) == {"a", "b", "c"}
    assert Counter(kinds) == {"a": 2, "b": 4, "c": 2}


def test_first_one_comes_in_a_calm_moment_and_some_in_the_middle_of_a_recovery():
    for seed in range(20):
        intents = draw(str(seed), 50, KINDS)
        assert intents[0].moment is Moment.CALM
        moments = {intent.moment for intent in intents}
        assert moments & set(IN_RECOVERY) and {Moment.SOON, Moment.CALM} <= moments


def test_without_a_network_of_its_own_nothing_is_cut():
    cuts = {kind for kind in FAULTS if kind.startswith("cut")}
    assert len(cuts) == 6
    assert set(possible(Namespaces(), SHARED, 2)) - set(possible(Loopback(), SHARED, 2)) == cuts
    assert set(possible(Loopback(), SHARED, 2, ["kill_node", "cut_off"])) == {"kill_node"}


def test_never_more_nodes_at_once_than_can_be_lost():
    one, two, three = frozenset(["n0"]), frozenset(["n1"]), frozenset(["n2"])
    assert allows([], one | two, losses_at_once=2)
    assert allows([one], two, losses_at_once=2)
    assert not allows([one], two, losses_at_once=1)
    assert not allows([one, two], three, losses_at_once=2)
    assert allows([one, two], one, losses_at_once=2), "the same node again is no further loss"


def test_what_endangers_nobody_is_limited_too():
    nobody = frozenset()
    assert allows([nobody] * (BURST - 1), nobody, losses_at_once=2)
    assert not allows([nobody] * BURST, nobody, losses_at_once=2)


def test_damage_to_the_only_copy_is_left_out():
    assert "damage_copy" in possible(Loopback(), SHARED, 2) and "damage_copy" not in possible(Loopback(), SHARED, 1)


def test_without_a_disk_of_its_own_the_disk_does_not_fail():
    disks = {kind for kind in FAULTS if kind.startswith("disk")}
    assert len(disks) == 3
    assert set(possible(Loopback(), LoopDisk(), 2)) - set(possible(Loopback(), SHARED, 2)) == disks


def test_node_and_trainer_are_lost_while_the_disk_is_full():
    first, *later = full_disk(600.0)
    assert (first.kind, first.moment) == ("disk_full", Moment.CALM)
    assert [(each.kind, each.delay_s) for each in later] == [("kill_node", 200.0), ("kill_trainer", 200.0)]
