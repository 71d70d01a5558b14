"""Orders to inject, as the coordinator takes them: refused with a reason, or handed to the agent they are meant for."""

from __future__ import annotations

from typing import Any

import pytest

from deadpool.config.orders import parse_order
from deadpool.control.coordinator.requests import InjectionRpc
from deadpool.protocol.coordinator.core import Coordinator
from deadpool.protocol.coordinator.outbox import CoordinatorConfig, Deadlines
from deadpool.protocol.identity import Address, Generation, Layout, Schedule
from deadpool.protocol.inputs import FromAgent
from deadpool.protocol.messages import Injection, Join, Permit, Plan, RankOrder, Settings


class Desk:
    """A desk before a job of two nodes with two ranks each, of which n1 has completed 5 steps."""

    def __init__(self, *orders: str, drills: bool = False) -> None:
        layout = Layout(positions=2, per_node=2, holders=1)
        settings = Settings(layout=layout, slots=3, heartbeat_s=1, unwind_s=1, drills=drills)
        deadlines = Deadlines(node_s=5, fence_s=5, prepare_s=5, connect_s=5, spare_wait_s=5, hang_s=5)
        core = Coordinator(CoordinatorConfig(settings=settings, deadlines=deadlines, schedule=Schedule()))
        for name in ("n0", "n1", "n2"):
            join = Join(node=name, incarnation="", data=Address(host="", port=1), spare=False)
            core.step(FromAgent(node=name, message=join), now=0.0)
        assert core.seats == ("n0", "n1")
        core.members["n1"].steps = {2: 5, 3: 6}
        self.sent: list[tuple[str, Injection]] = []
        self.records: list[dict[str, Any]] = []
        self.desk = InjectionRpc(
            lambda: core,
            [parse_order(order) for order in orders],
            send=lambda node, injection: self.sent.append((node, injection)),
            log_event=lambda event: self.records.append(event.record()),
        )


@pytest.mark.parametrize(
    ("order", "error"),
    [
        ({"node": "n1", "at": "lunch", "step": 7}, "at='lunch' is not a moment: give one of forward, backward, reduce"),
        ({"node": "n1", "at": "backward"}, "at=backward needs a step"),
        ({"node": "n1", "at": "recovered", "step": 7}, "step=7 cannot be used: at=recovered"),
        ({"node": "n1", "step": 7}, "step=7 goes with a moment"),
        ({"node": "n1", "at": "clip", "step": -1}, "step=-1 cannot be used"),
        ({"node": "n1", "rank": 1}, "give either a node or a rank"),
        ({"node": "n9", "at": "clip", "step": 7}, "there is no node 'n9': give one of n0, n1, n2"),
        ({"rank": 4, "at": "clip", "step": 7}, "there is no rank 4: give 0 to 3"),
        ({"node": "n1", "at": "clip", "step": 4}, "step=4 is past: node n1 has completed 5 steps"),
        ({"rank": 3, "at": "wire", "step": 5}, "step=5 is past: rank 3 has completed 6 steps"),
    ],
)
def test_order_that_cannot_come_true_is_refused(order, error):
    bench = Desk()
    assert error in bench.desk.order(order).error
    assert bench.sent == [] and bench.records == []


def test_order_for_a_moment_waits_where_its_rank_is():
    bench = Desk()
    answer = bench.desk.order({"rank": 2, "signal": 9, "at": "clip", "step": 5})
    assert answer.error is None and answer.body == {"node": "n1", "rank": 2, "at": "clip", "step": 5}
    assert bench.sent == [("n1", Injection(signal=9, rank=2, at="clip", step=5))]
    assert (
        bench.records[0]["what"] == "injection_ordered"
        and bench.records[0]["when"] == "while step 5's gradients are clipped"
    )


def test_spare_can_be_given_an_order_for_the_time_when_it_has_a_rank():
    bench = Desk()
    assert bench.desk.order({"node": "n2", "at": "recovered"}).error is None
    assert bench.sent == [("n2", Injection(signal=9, rank=None, at="recovered"))]


def test_orders_of_the_start_wait_for_their_node_or_rank():
    bench = Desk("at=forward step=0 node=n1", "at=backward step=0 rank=2", "at=clip step=0 rank=0")
    bench.desk.joined("n0")
    assert bench.sent == []
    bench.desk.joined("n1")
    bench.desk.planned("n1", plan(2, 3))
    assert [(node, injection.at) for node, injection in bench.sent] == [("n1", "forward"), ("n1", "backward")]
    bench.desk.joined("n1")
    bench.desk.planned("n1", plan(2, 3))
    assert len(bench.sent) == 2, "handed over once"


def plan(*ranks: int) -> Plan:
    generation = Generation(1, 1)
    return Plan(
        generation=generation,
        cause="start",
        resume=None,
        permit=Permit(generation=generation, watermark=None, keep_from=0, schedule=Schedule()),
        store_rank=0,
        orders=tuple(RankOrder(rank=rank, keep=False) for rank in ranks),
    )


FLIP = {"rank": 3, "signal": 0, "at": "updated", "step": 9, "flip": "moment", "lasts": True}


@pytest.mark.parametrize("flip", ["moment", "arena", "wire"])
def test_state_is_changed_in_drills_only(flip):
    bench = Desk()
    assert "start it with --drills" in bench.desk.order({**FLIP, "flip": flip}).error
    assert bench.sent == [] and bench.records == []


def test_order_to_flip_a_bit_in_the_next_audited_step_has_no_step():
    bench = Desk(drills=True)
    assert bench.desk.order({**FLIP, "at": "audited", "step": None}).error is None
    ((_, injection),) = bench.sent
    assert (injection.at, injection.step) == ("audited", None)
    assert "flip= needs a step" in bench.desk.order({**FLIP, "at": "audited"}).error


def test_order_to_flip_a_bit_names_the_device():
    bench = Desk(drills=True)
    assert bench.desk.order(FLIP).error is None
    ((node, injection),) = bench.sent
    assert (node, injection.flips, injection.lasts) == ("n1", "moment", True)
    assert [rank for rank in range(4) if injection.hits(rank)] == [1, 3], "the second device of whatever node it is on"


@pytest.mark.parametrize(
    ("order", "error"),
    [
        (
            {**FLIP, "flip": "loss"},
            "flip='loss' cannot be used: give one of parameter, moment, activation, gradient, received",
        ),
        ({**FLIP, "rank": None, "node": "n1"}, "flip= needs a rank"),
        ({**FLIP, "flip": "arena", "at": "audited", "step": None}, "flip=arena needs a step, as in step=20"),
        ({**FLIP, "flip": "wire", "at": "audited", "step": None}, "flip=wire needs a step, as in step=20"),
        ({**FLIP, "step": None}, "flip= needs a step"),
        ({**FLIP, "flip": None, "at": "clip"}, "lasts goes with flip="),
    ],
)
def test_order_to_flip_a_bit_that_cannot_be_meant_is_refused(order, error):
    assert error in Desk(drills=True).desk.order(order).error
