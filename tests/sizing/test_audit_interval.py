"""How often a step is to be audited: by hand, and against the sum that it is the least of."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from deadpool.sizing.audits import AuditInterval, audit_interval, audit_seconds
from deadpool.sizing.inputs import Inputs, Phases

PHASES = Phases(unwind_s=1.0, plan_s=1.0, prepare_s=1.0, connect_s=2.0)
LLAMA = Inputs(nodes=2048, ranks_per_node=8, days=54, step_s=5.0)
LOAD_S = 0.0


def interval(inputs: Inputs, every: int = 1) -> AuditInterval:
    return audit_interval(inputs, PHASES, load_s=LOAD_S, capture_every=every)


def total(inputs: Inputs, every: int, repeating: float) -> float:
    """The share of the time that audits cost, and that is lost to devices which err again and again."""
    apart_s = every * inputs.step_s
    return audit_seconds(inputs, PHASES, LOAD_S) / apart_s + repeating / inputs.seconds * apart_s / 2


def test_llama_3_by_hand():
    """6 errors on 16,384 devices in 54 days. C = 5 + 5 s; r = 3 in 54 days; sqrt(2 C / r) = 5,578 s."""
    found = interval(replace(LLAMA, silent_errors=6 / (16.384 * 54), silent_repeats=0.5))
    assert found.expected == pytest.approx(6.0) and found.repeating == pytest.approx(3.0)
    assert found.audit_s == 10.0
    assert found.every == round(math.sqrt(20 * 54 * 86400 / 3) / 5) == 1115
    assert found.cost_share == pytest.approx(10 / 5575) and found.lost_share == pytest.approx(0.00179, rel=0.01)
    assert found.not_found == pytest.approx(3.0, rel=0.01)


def test_default_rate_is_that_of_llama_3():
    assert interval(LLAMA).expected == pytest.approx(6.0, rel=0.01)


@pytest.mark.parametrize("silent_errors", [0.001, 0.0068, 1.0, 50.0])
@pytest.mark.parametrize("step_s", [1.0, 20.0])
def test_no_other_interval_costs_less(silent_errors, step_s):
    inputs = replace(LLAMA, silent_errors=silent_errors, step_s=step_s)
    found = interval(inputs)
    least = total(inputs, found.every, found.repeating)
    assert least == pytest.approx(found.cost_share + found.lost_share)
    others = [round(found.every * factor) for factor in (0.25, 0.5, 0.9, 1.1, 2.0, 4.0)]
    assert all(total(inputs, each, found.repeating) >= least * (1 - 1e-3) for each in others if each)


def test_interval_is_one_of_captured_versions():
    assert interval(LLAMA, every=100).every % 100 == 0
    assert interval(replace(LLAMA, silent_errors=1e5), every=7).every == 7, "no more often than versions are captured"


def test_measured_audits_take_the_place_of_what_recoveries_take():
    assert audit_seconds(replace(LLAMA, audit_s=1.5), PHASES, LOAD_S) == 6.5
    assert interval(replace(LLAMA, audit_s=1.5)).every < interval(LLAMA).every


def test_small_job_is_over_before_an_audit_is_worth_it():
    found = interval(Inputs(nodes=2, ranks_per_node=1, days=1.0))
    assert (found.every, found.cost_share) == (0, 0.0)
    assert found.not_found == found.expected > 0


def test_without_errors_that_repeat_there_is_nothing_to_choose():
    assert interval(replace(LLAMA, silent_errors=0.0)).every == 0
    once = interval(replace(LLAMA, silent_repeats=0.0))
    assert once.every == 0 and once.not_found == once.expected
