"""Nodes hit by the fault injector at named moments of an unmodified script, several in one job, each time exactly.

Between two injections rank 1, the one to be hit, waits at a gate in a step that is not hit: there it is waiting. While
a version is to be hit, captured or sent by threads that no rank waits for, it stands in that version's step.
"""

from __future__ import annotations

from typing import Any

import pytest

from deadpool.cli.job_client import ask

Record = dict[str, Any]

OF_VERSIONS = ("capture", "wire")


class Series:
    """Injections that were ordered, in the order in which they are to fall."""

    def __init__(self, gated: Any) -> None:
        self._stage = gated
        self.hit: list[Record] = []

    def at_gate(self, gate: int) -> None:
        """Everything is committed by then: what an injection finds does not depend on how fast copies travel."""
        self._stage.await_gate(gate)
        self._stage.await_committed(gate)

    def inject_on_node(self, at: str, step: int) -> None:
        """The one that holds rank 1 now."""
        self._order({"node": self._nodes_of([1])[0]}, at, step)
        self._await_set()

    def inject_on_trainer(self, at: str, step: int) -> None:
        self._order({"rank": 1}, at, step)
        self._await_set()

    def inject_on_the_only_spare(self, at: str) -> None:
        """The last one that was started may not have joined yet."""
        self._stage.trial.await_true(lambda: len(self._nodes_of([])) == 1, "the only spare")
        self._order({"node": self._nodes_of([])[0]}, at, None)

    def await_fault(self) -> None:
        """Of the injection that was ordered last."""
        self._stage.trial.await_event("fault", count=len(self.hit))

    def _await_set(self) -> None:
        """Until the one that is to inject knows of it."""
        self._stage.trial.await_event("injection_set", count=len(self.hit))

    def _nodes_of(self, ranks: list[int]) -> list[str]:
        return [each["node"] for each in self._stage.status()["nodes"] if list(each["ranks"]) == ranks]

    def _order(self, place: Record, at: str, step: int | None) -> None:
        self.hit.append(ask(self._stage.trial.job.run_dir, "kill", **place, at=at, step=step))

    def check(self) -> None:
        """Each fault was injected once, where and when it was ordered, and took its whole node if that was meant."""
        pending_injections, faults = self._stage.events("injected"), self._stage.events("fault")
        assert self._stage.events("injection_missed") == []
        assert [(a["at"], a.get("step")) for a in pending_injections] == [(s["at"], s["step"]) for s in self.hit]
        assert [(f["node"], f.get("rank")) for f in faults] == [(s["node"], s["rank"]) for s in self.hit]


def newest_step_when_hit(gated: Any, results: Any, at: str) -> int:
    """By what the script itself wrote down: of the hit rank, before it was hit."""
    injected = next(each for each in gated.events("injected") if each["at"] == at)
    return max(each.step for each in results.steps[injected["rank"]] if each.ended < injected["t"])


def resumed_at(gated: Any, index: int) -> int:
    return int(gated.events("planned")[1 + index]["step"])


@pytest.mark.parametrize(
    ("layout", "moments"),
    [
        pytest.param("fsdp2", ("backward", "reduce", "optimizer", "capture"), marks=pytest.mark.thorough),
        ("ddp", ("forward", "reduce", "clip", "wire")),
    ],
)
def test_node_after_node_killed_at_its_moment(make_gated_job, run_and_compare, layout, moments):
    gates = range(0, 8, 2)
    gated = make_gated_job(layout, acts=" ".join(f"wait@{gate}:1" for gate in range(8)), spares=len(moments))
    series = Series(gated)

    def during():
        for gate, at in zip(gates, moments, strict=True):
            series.at_gate(gate)
            series.inject_on_node(at, gate + 1)
            gated.open_gate(gate)
            if at not in OF_VERSIONS:
                gated.open_gate(gate + 1)
            series.await_fault()
            gated.open_gate(gate + 1)

    results = run_and_compare(gated, during)
    series.check()
    for gate, at in zip(gates, moments[:3], strict=False):
        assert newest_step_when_hit(gated, results, at) == gate
    assert resumed_at(gated, 3) == 6, "version 7 was not whole anywhere else when its node died"


@pytest.mark.thorough
def test_first_step_ever_then_between_steps_then_right_after_a_recovery(make_gated_job, run_and_compare):
    first = "at=backward step=0 node=n1"
    gated = make_gated_job("plain", acts="wait@2:1 wait@4:1 wait@6:1", spares=3, faults=(first,))
    series = Series(gated)
    series.hit.append({"node": "n1", "rank": None, "at": "backward", "step": 0})

    def during():
        series.at_gate(2)
        series.inject_on_node("between", 2)
        gated.open_gate(2)
        series.at_gate(4)
        series.inject_on_trainer("reduce", 5)
        gated.open_gate(4)
        series.at_gate(6)
        series.inject_on_node("clip", 7)
        series.inject_on_the_only_spare("recovered")
        gated.open_gate(6)
        gated.trial.await_event("awaiting_spare")
        gated.trial.job.add_node("n9", spare=True)

    results = run_and_compare(gated, during)
    series.check()
    assert resumed_at(gated, 0) == 0
    assert newest_step_when_hit(gated, results, "between") == 2
    assert newest_step_when_hit(gated, results, "reduce") == 4
    assert resumed_at(gated, 4) == resumed_at(gated, 3), "nothing was computed between the two"
