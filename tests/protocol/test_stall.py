"""A job that hangs is not healed yet, but it must not hang unseen."""

from __future__ import annotations

from typing import Any

from deadpool.protocol.coordinator import Coordinator
from deadpool.protocol.deadlines import Deadlines
from deadpool.protocol.effects import Emit, FromAgent
from deadpool.protocol.messages import Connected, Heartbeat, Join, PlanAck, Prepared, Settings
from deadpool.protocol.topology import Address, Layout, Schedule

HERE = Address(host="here", port=1)
LAYOUT = Layout(positions=1, per_node=2, holders=0)


def running() -> Coordinator:
    settings = Settings(layout=LAYOUT, slots=2, heartbeat_s=1, unwind_s=4)
    deadlines = Deadlines(node_s=1000, fence_s=10, prepare_s=60, connect_s=20, spare_wait_s=100, stall_s=30)
    core = Coordinator(settings=settings, deadlines=deadlines, schedule=Schedule())
    say(core, 0, Join(node="n0", incarnation="a", data=HERE, spare=False))
    for rank in (0, 1):
        say(core, 0, Prepared(generation=core.generation, rank=rank, store=HERE))
    say(core, 0, PlanAck(generation=core.generation))
    for rank in (0, 1):
        say(core, 0, Connected(generation=core.generation, rank=rank))
    return core


def say(core: Coordinator, now: float, message: Any) -> list[Any]:
    effects = core.step(FromAgent(node="n0", message=message), now=now)
    return [effect.event for effect in effects if isinstance(effect, Emit) and effect.event.what == "stalled"]


def beat(core: Coordinator, now: float, *steps: int) -> list[Any]:
    return say(core, now, Heartbeat(generation=core.generation, steps=tuple(enumerate(steps))))


def test_rank_that_is_behind_is_named_once() -> None:
    core = running()
    assert not beat(core, 10, 5, 4)
    assert not beat(core, 39, 5, 4)
    (event,) = beat(core, 40, 5, 4)
    assert event.detail["ranks"] == [1]
    assert not beat(core, 41, 5, 4)


def test_slow_start_is_no_stall() -> None:
    core = running()
    assert not beat(core, 10, 0, 0)
    assert not beat(core, 500, 0, 0)


def test_progress_ends_the_stall() -> None:
    core = running()
    beat(core, 10, 5, 4)
    assert not beat(core, 39, 5, 5)
    assert not beat(core, 60, 5, 5)
