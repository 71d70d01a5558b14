"""An agent's orders to inject: whom of its trainers it tells, when it hits itself, what a push in flight does."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import pytest

from deadpool.control.agent import fault_injection as module
from deadpool.control.agent.fault_injection import NodeInjections
from deadpool.protocol.agent.trainers.trainers import NodeTrainers, TrainerState
from deadpool.protocol.effects import PushCopy
from deadpool.protocol.identity import Address, Generation, Version
from deadpool.protocol.messages import Copy, Holder, Injected, Injection, SlotRef
from deadpool.protocol.seal import HEADER_BYTES, Digest, Extent, Geometry, Seal
from deadpool.snapshot.transfer import Midway

GENERATION = Generation(1, 1)
SLOT = memoryview(bytearray(HEADER_BYTES + 4096))


class Node:
    """An agent's injections with two seated trainers, ranks 2 and 3, and what came of orders."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Injection]] = []
        self.happened: list[Any] = []
        trainers = NodeTrainers("n1", [])
        for rank in (2, 3):
            trainer = trainers.start()
            trainer.state, trainer.rank = TrainerState.SEATED, rank
        self.injections = NodeInjections(
            trainers,
            send=lambda trainer, message: self.told.append((trainer, message)),
            signal_trainer=lambda trainer, sig: self.happened.append((trainer, sig)),
            report=lambda event: self.happened.append((event.what, event.rank, event.step)),
        )


@pytest.fixture
def play(monkeypatch) -> Callable[[Callable[[Node], Any]], Node]:
    """Acts on a node inside an event loop."""

    def run(act: Callable[[Node], Any]) -> Node:
        async def scenario() -> Node:
            node = Node()
            monkeypatch.setattr(module.os, "killpg", lambda group, sig: node.happened.append(("node", sig)))
            midway = act(node)
            if midway is not None:
                await asyncio.to_thread(midway.act)
            return node

        return asyncio.run(scenario())

    return run


def injection(at: str | None, step: int | None = None, rank: int | None = None) -> Injection:
    return Injection(signal=signal.SIGKILL, rank=rank, at=at, step=step)


def push(number: int, rank: int = 2) -> PushCopy:
    extent = Extent(record_bytes=1, unique_bytes=0, replica_bytes=0)
    seal = Seal(
        rank=rank,
        version=Version(GENERATION, number),
        extent=extent,
        digest=Digest(record=0, unique=0, replica=0),
        full=True,
    )
    geometry = Geometry(record_capacity=4096, unique_bytes=0, replica_bytes=0)
    return PushCopy(
        slot=SlotRef(segment=0, index=0),
        copy=Copy(seal=seal, geometry=geometry),
        holder=Holder(node="n2", address=Address(host="127.0.0.1", port=1)),
        generation=GENERATION,
        full=True,
    )


def test_order_for_now(play):
    assert play(lambda node: node.injections.order(injection(None))).happened == [("node", 9)]
    assert play(lambda node: node.injections.order(injection(None, rank=3))).happened == [("n1.1", 9)]


def test_all_trainers_of_a_node_wait_one_trainer_of_a_rank_does(play):
    both, one = injection("clip", 7), injection("clip", 7, rank=3)
    assert play(lambda node: node.injections.order(both)).told == [("n1.0", both), ("n1.1", both)]
    assert play(lambda node: node.injections.order(one)).told == [("n1.1", one)]


def test_trainer_that_is_seated_later_is_told(play):
    def act(node):
        node.injections.order(injection("clip", 7, rank=3))
        node.injections.order(injection("clip", 8, rank=2))
        node.told.clear()
        node.injections.seated("n1.5", 3)

    assert play(act).told == [("n1.5", injection("clip", 7, rank=3))]


def test_node_follows_the_trainer_that_reached_the_moment(play):
    news = Injected(injection=injection("clip", 7), hit=True)
    assert play(lambda node: node.injections.on_injected(news)).happened == [("node", 9)]
    spared = [
        Injected(injection=injection("clip", 7), hit=False),
        Injected(injection=injection("clip", 7, rank=2), hit=True),
    ]
    for news in spared:
        assert play(lambda node, news=news: node.injections.on_injected(news)).happened == []


@pytest.mark.parametrize("hit", [True, False])
def test_order_is_used_up_by_what_came_of_it(play, hit):
    order = injection("clip", 7, rank=3)

    def act(node):
        node.injections.order(order)
        node.injections.on_injected(Injected(injection=order, hit=hit))
        node.told.clear()
        node.injections.seated("n1.5", 3)

    assert play(act).told == []


def test_push_is_held_until_the_node_is_hit(play):
    def act(node):
        node.injections.order(injection("wire", 4))
        assert node.told == [], "trainers have no part in it"
        assert node.injections.disturb(push(3), SLOT) is None
        return node.injections.disturb(push(4), SLOT)

    assert play(act).happened == [("injection_set", None, 4), ("injected", 2, 4), ("node", 9)]


def test_push_of_one_rank_is_meant(play):
    def act(node):
        node.injections.order(injection("wire", 4, rank=3))
        assert node.injections.disturb(push(4, rank=2), SLOT) is None
        return node.injections.disturb(push(4, rank=3), SLOT)

    assert play(act).happened == [("injection_set", 3, 4), ("injected", 3, 4), ("n1.1", 9)]


def test_version_that_was_never_pushed_is_told_as_missed(play):
    def act(node):
        node.injections.order(injection("wire", 4))
        assert node.injections.disturb(push(5), SLOT) is None
        assert node.injections.disturb(push(4), SLOT) is None, "used up"

    assert play(act).happened == [("injection_set", None, 4), ("injection_missed", 2, 4)]


def flip(what: str, step: int = 3, *, lasts: bool = False) -> Injection:
    return Injection(signal=0, rank=2, at="updated", step=step, flips=what, lasts=lasts, ranks_per_node=2)


def flipped_bits(node: Node, number: int, rank: int = 2) -> tuple[int, Midway | None]:
    slot = memoryview(bytearray(HEADER_BYTES + 4096))
    midway = node.injections.disturb(push(number, rank), slot)
    return sum(byte.bit_count() for byte in slot), midway


@pytest.mark.parametrize("what", ["arena", "wire"])
def test_bit_of_a_copy_is_the_agents_business(play, what):
    def act(node):
        node.injections.order(flip(what))
        node.injections.seated("n1.5", 2)

    node = play(act)
    assert node.told == [] and node.happened == [("injection_set", 2, 3)]


def test_bit_flips_in_the_first_snapshot_after_the_step(play):
    def act(node):
        node.injections.order(flip("arena"))
        assert [flipped_bits(node, number)[0] for number in (3, 4, 4, 5)] == [0, 1, 0, 0]
        assert flipped_bits(node, 6, rank=3) == (0, None)

    assert play(act).happened == [("injection_set", 2, 3), ("injected", 2, 3)]


def test_memory_that_always_errs_flips_each_snapshot_once(play):
    """It may be sent several times: a bit that flips twice is right again."""

    def act(node):
        node.injections.order(flip("arena", lasts=True))
        assert [flipped_bits(node, number)[0] for number in (4, 4, 5, 4)] == [1, 0, 1, 0]
        assert flipped_bits(node, 5, rank=3)[0] == 0, "the other rank's memory is another one"

    assert play(act).happened[1:] == [("injected", 2, 3), ("injected", 2, 4)]


def test_bit_on_the_wire_leaves_the_memory_as_it_is(play):
    def act(node):
        node.injections.order(flip("wire"))
        assert flipped_bits(node, 3) == (0, None)
        changed, midway = flipped_bits(node, 4)
        assert changed == 0 and midway.flips
        assert flipped_bits(node, 4) == (0, None), "used up"
        return midway

    assert play(act).happened == [("injection_set", 2, 3), ("injected", 2, 3)]


def test_wire_that_always_errs_flips_each_copy(play):
    def act(node):
        node.injections.order(flip("wire", lasts=True))
        assert all(flipped_bits(node, number)[1].flips for number in (4, 4, 5))

    play(act)
