"""The seeds whose machines fall silent, but for a while only: they come back, with copies and seats of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from deadpool.sim.returns import cut_off_for

from deadpool.protocol import planner
from deadpool.protocol.coordinator import Coordinator
from deadpool.protocol.members import Member
from deadpool.protocol.messages import Prompts
from deadpool.sim.faults import Faults
from deadpool.sim.machine import Machine
from deadpool.sim.options import draw
from deadpool.sim.run import run_seed

SEEDS = 400
LONGEST_S = 25.0


def _silence_for_a_while(self: Faults, machines: list[Machine]) -> None:
    world = self._world
    for machine in machines:
        self.struck += 1
        world.checkers.before_loss(nodes=1)
        world.checkers.disturbed()  # whether it was lost nobody can say before it is over
        cut_off_for(world, machine, 1 + LONGEST_S * world.rng.random())


def _silent_seeds(first: int, last: int) -> list[int]:
    return [seed for seed in range(first, last) if any(plan.kind == "silent" for plan in draw(seed).faults)]


def test_nodes_fall_silent_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Faults, "_silence", _silence_for_a_while)
    returned = 0
    for seed in _silent_seeds(0, SEEDS):
        result = run_seed(seed, story=True)
        assert result.violation is None, f"seed {seed}: {result.violation}"
        returned += any(" returned " in line for line in result.story)
    assert returned > 10, "else nothing was tried"


def _counts_what_nobody_seated_has(patch: pytest.MonkeyPatch) -> None:
    """What a node without a seat has in memory is planned with."""
    patch.setattr(planner._Stock, "_sits", lambda self, node, rank: True)


def _believes_old_prompts(patch: pytest.MonkeyPatch) -> None:
    handle = Coordinator._handle

    def gullible(self: Coordinator, member: Member, message: object, now: float) -> None:
        if isinstance(message, Prompts):
            member = replace(member, position=self.layout.position_of(message.rank))
        handle(self, member, message, now)

    patch.setattr(Coordinator, "_handle", gullible)


@pytest.mark.parametrize("mutate", [_counts_what_nobody_seated_has, _believes_old_prompts])
def test_mutation_is_caught(monkeypatch: pytest.MonkeyPatch, mutate: Callable[[pytest.MonkeyPatch], None]) -> None:
    monkeypatch.setattr(Faults, "_silence", _silence_for_a_while)
    mutate(monkeypatch)
    assert any(run_seed(seed).violation for seed in _silent_seeds(0, SEEDS)), "no seed minds"
