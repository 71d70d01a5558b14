"""Weeks of a job through the real coordinator core, and the model of `deadpool plan` beside them."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from deadpool.sizing.advice import Advice, Wishes, advise
from deadpool.sizing.failure_history import mix
from deadpool.sizing.inputs import Inputs, Phases
from deadpool.sizing.protection import ProtectionScheme
from deadpool_lab.cli.plan_simulation import run_one, setup_of
from deadpool_lab.sim.endurance.setup import Lived

SMALL = Inputs(nodes=32, nodes_per_rack=4, mtbf_h=200.0, wait_h=9999.0, days=8.0)


def advice(inputs: Inputs, **wishes: object) -> Advice:
    return advise(inputs, mix(inputs), Phases(), Wishes(**wishes))  # type: ignore[arg-type]


def live(given: Advice, seed: int, **changed: object) -> Lived:
    return run_one(replace(setup_of(given, 1), **changed), seed)[1]  # type: ignore[arg-type]


def test_nothing_breaks_and_nothing_is_lost_but_the_overhead():
    given = advice(SMALL, spares=1)
    lived = live(given, 1, outages=())
    assert lived.goodput == pytest.approx(1 / (1 + given.best.overhead), abs=1e-4)
    assert lived.recoveries == 1  # the start


def test_same_seed_same_life():
    given = advice(SMALL, spares=3)
    assert live(given, 5, days=5.0) == live(given, 5, days=5.0)


def test_with_spares_enough_model_and_core_agree():
    given = advice(SMALL, spares=12)
    found = [live(given, seed) for seed in (1, 2)]
    assert all(lived.ended is None and lived.waiting_s == 0.0 for lived in found)
    assert all(lived.recoveries > 15 for lived in found)
    assert fmean(lived.goodput for lived in found) == pytest.approx(given.best.goodput, abs=0.002)


def test_where_spares_run_out_the_core_waits_as_often_as_the_model_says():
    """One run of 8 days is far from its mean; what the model expects lies within the runs, and the band holds them."""
    given = advice(replace(SMALL, repair_h=3.0), spares=0)
    found = [live(given, seed).goodput for seed in range(1, 6)]
    low, high = given.band
    assert 0.5 < given.best.goodput < 0.95
    assert min(found) < given.best.goodput < max(found)
    assert fmean(found) == pytest.approx(given.best.goodput, abs=0.06)
    assert sum(low <= each <= high for each in found) >= 3


def test_racks_that_nobody_named_send_the_job_back_to_its_checkpoint():
    inputs = replace(SMALL, mtbf_h=1e6, rack_mtbf_h=500.0)
    wanted = {"spares": 12, "scheme": ProtectionScheme(1)}
    named, unnamed = advice(inputs, **wanted), advice(inputs, **wanted, racks_known=False)
    assert live(named, 2).from_checkpoint == 0
    lost = live(unnamed, 2)
    assert lost.from_checkpoint > 0
    assert lost.from_checkpoint <= lost.interruptions["rack"]


def test_a_drain_costs_no_step():
    given = advice(SMALL, spares=6)
    setup = setup_of(given, 1)
    planned = tuple(replace(each, per_s=40 * each.per_s) for each in setup.outages if each.kind == "planned")
    lived = live(given, 2, outages=planned, days=4.0)
    assert lived.interruptions["planned"] > 5
    assert lived.recoveries > 5
    assert lived.redone_steps == 0


def test_a_job_that_may_not_wait_long_enough_ends_and_says_why():
    given = advice(replace(SMALL, repair_h=48.0, wait_h=0.1), spares=0)
    lived = live(given, 1)
    assert lived.ended is not None and "no spare node joined in time" in lived.ended


def test_several_ranks_per_node_live_like_one():
    given = advice(SMALL, spares=12)
    one, three = live(given, 4, days=3.0), live(given, 4, days=3.0, per_node=3)
    assert three.interruptions == one.interruptions
    assert three.goodput == pytest.approx(one.goodput, abs=0.002)


@pytest.mark.parametrize("scheme", [ProtectionScheme(1, 4), ProtectionScheme(2, 8)])
def test_coded_groups_bring_back_what_was_lost_as_often_as_the_model_says(scheme: ProtectionScheme):
    given = advice(SMALL, spares=12, scheme=scheme)
    found = [live(given, seed) for seed in (1, 2)]
    assert all(lived.ended is None and lived.from_checkpoint == 0 and lived.recoveries > 15 for lived in found)
    assert fmean(lived.goodput for lived in found) == pytest.approx(given.best.goodput, abs=0.002)


def test_more_losses_at_once_than_parities_send_a_coded_job_back_to_its_checkpoint():
    """Repairs last, and no spare is there: while the job waits, more nodes of a group are lost."""
    inputs = replace(SMALL, mtbf_h=60.0, repair_h=3.0)
    found = {m: live(advice(inputs, spares=0, scheme=ProtectionScheme(m, 4)), 3).from_checkpoint for m in (1, 3)}
    assert found[1] > found[3]
