"""A trainer's walk from rest to Go: which order leads where, in which order they may come, and what ends it."""

from __future__ import annotations

import pytest
from notation import slot

from deadpool.protocol.identity import Address, Generation, Schedule, Version
from deadpool.protocol.messages import Arriving, Connect, Connected, Go, Restore, Seat
from deadpool.protocol.recovery_walk import Abandon, Load, LoadEarly, RebuildGroups, RecoveryWalk, Resume, WalkStage
from deadpool.protocol.seal import Digest, Extent, Seal
from deadpool.protocol.trainer_core import TrainerCore

FIRST, SECOND, THIRD = Generation(1, 1), Generation(1, 2), Generation(1, 3)
RESUME = Version(FIRST, 4)
STORE = Address(host="n1", port=1)


def fenced() -> tuple[TrainerCore, RecoveryWalk]:
    """A trainer that rests under the second generation's fence."""
    core = TrainerCore()
    core.take_seat(FIRST, 0, Schedule())
    core.begin()
    core.halt(SECOND)
    walk = RecoveryWalk(core)
    assert walk.rest().generation == SECOND
    return core, walk


def restore(generation: Generation = SECOND) -> Restore:
    return Restore(generation=generation, version=RESUME, slot=slot("1/0"), schedule=Schedule(), capture=False)


def connect(generation: Generation = SECOND) -> Connect:
    return Connect(generation=generation, store=STORE)


def arriving() -> Arriving:
    extent = Extent(record_bytes=1, unique_bytes=1, replica_bytes=0)
    seal = Seal(rank=0, version=RESUME, extent=extent, digest=Digest(record=0, unique=0, replica=0), full=True)
    return Arriving(generation=SECOND, slot=slot("1/0"), seal=seal)


def test_each_order_leads_one_stage_further() -> None:
    core, walk = fenced()
    assert walk.advance() is None
    walk.on_order(restore())
    assert walk.advance() == Load(restore=restore())
    assert not core.clean and walk.advance() is None
    prepared = walk.loaded(STORE, "agreed")
    assert prepared is not None and (prepared.generation, prepared.agreement) == (SECOND, "agreed")
    assert core.clean and core.live == RESUME and walk.advance() is None
    walk.on_order(connect())
    assert walk.advance() == RebuildGroups(connect=connect())
    assert walk.connected() == Connected(generation=SECOND, rank=0)
    walk.on_order(Go(generation=SECOND, cause=""))
    assert walk.advance() == Resume(restore=restore())
    assert walk.stage is WalkStage.RUNNING and walk.advance() is None


def test_orders_that_come_before_their_stage_are_kept() -> None:
    _, walk = fenced()
    for order in (restore(), connect(), Go(generation=SECOND, cause="")):
        walk.on_order(order)
    assert isinstance(walk.advance(), Load) and walk.loaded(STORE)
    assert isinstance(walk.advance(), RebuildGroups) and walk.connected()
    assert isinstance(walk.advance(), Resume)


def test_orders_of_another_generation_do_not_count() -> None:
    _, walk = fenced()
    walk.on_order(restore(FIRST))
    assert walk.advance() is None


def test_early_load_is_offered_once_and_not_after_restore() -> None:
    _, walk = fenced()
    walk.on_order(arriving())
    assert walk.advance() == LoadEarly(arriving=arriving())
    assert walk.advance() is None
    walk.on_order(restore())
    assert isinstance(walk.advance(), Load)


def test_fence_in_mid_load_ends_the_walk_and_nothing_is_promised() -> None:
    core, walk = fenced()
    walk.on_order(restore())
    walk.advance()
    core.halt(THIRD)
    assert walk.loaded(STORE) is None
    assert walk.advance() == Abandon()
    assert walk.rest().generation == THIRD and walk.advance() is None


def test_fence_in_mid_rebuild_ends_the_walk() -> None:
    core, walk = fenced()
    walk.on_order(restore())
    walk.on_order(connect())
    walk.advance()
    walk.loaded(STORE)
    walk.advance()
    core.halt(THIRD)
    assert walk.connected() is None
    assert walk.advance() == Abandon()


def test_newer_seat_ends_a_newcomers_walk() -> None:
    core = TrainerCore()
    walk = RecoveryWalk(core)
    core.take_seat(FIRST, 0, Schedule())
    walk.on_role(Seat(generation=FIRST, cause="", rank=0, resume=RESUME, schedule=Schedule()))
    walk.begin(FIRST)
    assert walk.advance() is None
    walk.on_role(Seat(generation=SECOND, cause="", rank=0, resume=RESUME, schedule=Schedule()))
    assert walk.advance() == Abandon()


@pytest.mark.parametrize("outcome", ["loaded", "damaged"])
def test_newer_seat_and_its_orders_in_mid_load(outcome) -> None:
    """Its agent seats a newcomer anew and sends the newer orders at once, while the script still loads by the older."""
    core = TrainerCore()
    walk = RecoveryWalk(core)
    core.take_seat(FIRST, 0, Schedule())
    walk.begin(FIRST)
    walk.on_order(restore(FIRST))
    walk.advance()
    walk.on_role(Seat(generation=SECOND, cause="", rank=0, resume=RESUME, schedule=Schedule()))
    walk.on_order(restore(SECOND))
    walk.on_order(connect(SECOND))
    if outcome == "loaded":
        assert walk.loaded(STORE) is None
    else:
        assert walk.damaged("n1").generation == FIRST
    assert walk.advance() == Abandon()
    walk.begin(SECOND)
    assert walk.advance() == Load(restore=restore(SECOND))


def test_damaged_copy_leads_nowhere_but_to_another_generation() -> None:
    core, walk = fenced()
    for order in (arriving(), restore(), connect()):
        walk.on_order(order)
    walk.advance()
    assert walk.damaged("n1").version == RESUME
    assert walk.advance() is None
    core.halt(THIRD)
    assert walk.advance() == Abandon()


def test_walk_is_begun_again_in_the_same_generation() -> None:
    """A newcomer that lacks a group makes it in dry steps, and loads once more."""
    _, walk = fenced()
    walk.on_order(restore())
    walk.on_order(connect())
    walk.advance()
    walk.loaded(STORE)
    assert isinstance(walk.advance(), RebuildGroups)
    walk.begin(SECOND)
    assert isinstance(walk.advance(), Load)
