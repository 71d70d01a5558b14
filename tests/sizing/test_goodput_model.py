"""The model: against closed forms, in the directions that everyone expects, and at its edges."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

import pytest

from deadpool.errors import ConfigError
from deadpool.sizing.advice import Wishes, advise, best_spares, draws
from deadpool.sizing.failure_history import LLAMA3, LLAMA3_PLANNED, InterruptionRate, mix, shares
from deadpool.sizing.goodput import Choice, outlook
from deadpool.sizing.inputs import Inputs, Phases
from deadpool.sizing.protection import SCHEMES, ProtectionScheme, best_interval, costs_of, least_interval, parse_scheme

LLAMA = Inputs(nodes=2048)
ONE = Choice(spares=11, scheme=ProtectionScheme(1), every=1, durable_s=3600.0)


def goodput(inputs: Inputs = LLAMA, **changed: object) -> float:
    choice = replace(ONE, **changed)  # type: ignore[arg-type]
    return outlook(inputs, mix(inputs), Phases(), choice).goodput


def test_the_published_table_adds_up():
    assert sum(LLAMA3.values()) == 419
    assert sum(LLAMA3.values()) + LLAMA3_PLANNED == 466
    assert sum(shares().values()) == pytest.approx(1.0)


def test_the_default_rate_gives_the_published_number_of_interruptions():
    seen = outlook(LLAMA, mix(LLAMA), Phases(), ONE)
    count = sum(kind.per_s for kind in seen.kinds if kind.name != "every copy lost") * LLAMA.seconds
    assert count == pytest.approx(466, abs=1)


def test_one_kind_of_fault_costs_what_its_formula_says():
    inputs = Inputs(nodes=100, nodes_per_rack=0)
    rate = 1e-7
    only = [InterruptionRate(name="process", kind="process", per_s=rate, away_s=0.0)]
    phases = Phases(detect_process_s=1, unwind_s=2, plan_s=3, prepare_s=4, connect_s=5)
    seen = outlook(inputs, only, phases, replace(ONE, spares=0, every=7, durable_s=0.0))
    costs = costs_of(ONE.scheme, inputs)
    stopped = 1 + 2 + 3 + 4 + 5 + inputs.build_s + costs.own_load_s
    redone = costs.lag_s + 7 * inputs.step_s / 2
    expected = (1 - 100 * rate * redone) * math.exp(-100 * rate * stopped) / (1 + seen.overhead)
    assert seen.goodput == pytest.approx(expected, rel=1e-9)


def test_without_failures_only_protection_costs_anything():
    inputs = Inputs(nodes=64, mtbf_h=math.inf, rack_mtbf_h=math.inf)
    advice = advise(inputs, mix(inputs), Phases(), Wishes())
    assert advice.best.choice.spares == 0
    assert advice.best.short.share == 0.0
    assert 0.999 < advice.best.goodput < 1.0
    assert advice.band[0] == pytest.approx(advice.best.goodput, abs=1e-6)


def test_goodput_grows_with_spares_and_with_reliability_and_falls_with_repairs_steps_and_builds():
    by_spares = [goodput(spares=count) for count in (0, 2, 5, 10, 20)]
    assert by_spares == sorted(by_spares) and by_spares[0] < by_spares[-1] - 0.5
    by_mtbf = [goodput(replace(LLAMA, mtbf_h=hours)) for hours in (1000, 3000, 6335, 50_000)]
    assert by_mtbf == sorted(by_mtbf)
    for name, values in {"repair_h": (1, 12, 48), "step_s": (1, 20, 120), "build_s": (1, 60, 600)}.items():
        falling = [goodput(replace(LLAMA, **{name: value}), every=4) for value in values]
        assert falling == sorted(falling, reverse=True), name


def test_a_spare_is_recommended_until_the_next_one_costs_more_than_it_brings():
    phases, kinds = Phases(), mix(LLAMA)
    best = best_spares(LLAMA, kinds, phases, Wishes(), [ProtectionScheme(1)])
    worth = [outlook(LLAMA, kinds, phases, replace(ONE, spares=n)).goodput / (2048 + n) for n in range(best + 5)]
    assert 1 < best < 40
    assert max(range(len(worth)), key=worth.__getitem__) == pytest.approx(best, abs=1)


def test_an_interval_is_the_best_of_all_that_fit():
    inputs = Inputs(nodes=2048, step_s=0.5, state_gb=20.0, network_gb_s=400.0)
    kinds, rate = mix(inputs), 466 / LLAMA.seconds
    best = best_interval(ProtectionScheme(1), inputs, rate)
    assert best >= least_interval(ProtectionScheme(1), inputs)
    around = {n: outlook(inputs, kinds, Phases(), replace(ONE, every=n)).goodput for n in range(1, 4 * best)}
    assert around[best] == pytest.approx(max(around.values()), abs=2e-5)


def test_a_copy_that_does_not_fit_beside_a_step_is_taken_less_often():
    assert least_interval(ProtectionScheme(1), Inputs(step_s=0.1, state_gb=20.0)) >= 6  # 0.4 s in 0.07 s


def test_coded_memory_is_m_of_k_of_a_copy_and_sends_m_shards():
    whole, coded = costs_of(ProtectionScheme(1), LLAMA), costs_of(ProtectionScheme(2, 8), LLAMA)
    assert coded.held_bytes == whole.held_bytes / 4
    assert coded.wire_bytes == 2 * whole.wire_bytes
    assert coded.rebuild_s > 5 * whole.rebuild_s


def test_memory_decides_for_a_coded_scheme():
    needed = costs_of(ProtectionScheme(1), LLAMA)
    inputs = replace(LLAMA, host_memory_gb=(needed.own_bytes + needed.held_bytes) / 1e9 - 1)
    found = advise(inputs, mix(inputs), Phases(), Wishes(spares=11))
    assert found.best.choice.scheme.coded
    assert {str(seen.choice.scheme) for seen in found.schemes} == {"rs(8,1)", "rs(4,1)", "rs(8,2)"}


def test_state_that_fits_no_scheme_is_refused_with_what_would_do():
    inputs = Inputs(nodes=64, state_gb=400.0)
    with pytest.raises(ConfigError, match=r"host_memory_gb=1000.0 cannot be used: .* need 10800 GB per node"):
        advise(inputs, mix(inputs), Phases(), Wishes())
    enough = replace(inputs, host_memory_gb=10_801.0)
    assert advise(enough, mix(enough), Phases(), Wishes(spares=1)).best.choice.scheme == ProtectionScheme(1, 8)


def test_one_node_can_hold_no_copy():
    with pytest.raises(ConfigError, match=r"nodes=1 cannot be used: give at least 2"):
        advise(Inputs(nodes=1), mix(Inputs(nodes=1)), Phases(), Wishes())


def test_racks_that_nobody_named_cost_a_durable_checkpoint_each():
    inputs = replace(LLAMA, rack_mtbf_h=10_000.0)
    named, unnamed = goodput(inputs, spares=30), goodput(inputs, spares=30, racks_known=False)
    racks = 256 * inputs.seconds / (10_000 * 3600)
    seen = outlook(inputs, mix(inputs), Phases(), replace(ONE, spares=30, racks_known=False))
    assert seen.fatal_per_s * inputs.seconds == pytest.approx(racks, rel=0.05)
    assert named - unnamed > 0.8 * racks * 1800 / inputs.seconds


def test_waiting_for_a_spare_is_what_loses_the_last_copies():
    short, enough = (outlook(LLAMA, mix(LLAMA), Phases(), replace(ONE, spares=n)) for n in (1, 20))
    assert short.fatal_per_s > 50 * enough.fatal_per_s
    two = outlook(LLAMA, mix(LLAMA), Phases(), replace(ONE, spares=1, scheme=ProtectionScheme(2)))
    assert two.fatal_per_s < short.fatal_per_s / 50


@pytest.mark.parametrize("spares", [2, 6, 14])
def test_draws_that_know_no_formula_agree_with_it(spares):
    """200 runs of the same rates: their mean lies within four standard errors."""
    choice = replace(ONE, spares=spares)
    seen = outlook(LLAMA, mix(LLAMA), Phases(), choice)
    found = draws(LLAMA, mix(LLAMA), seen)
    error = (fmean((each - fmean(found)) ** 2 for each in found) / len(found)) ** 0.5
    assert fmean(found) == pytest.approx(seen.goodput, abs=4 * error + 0.002)


def test_a_rate_that_rests_on_few_failures_has_a_wider_band():
    inputs = Inputs(nodes=256)
    known = advise(inputs, mix(inputs), Phases(), Wishes(spares=4))
    guessed = advise(inputs, mix(inputs), Phases(), Wishes(spares=4), evidence=1)
    assert guessed.band[0] < known.band[0]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_schemes_are_read_as_they_are_written(scheme):
    assert parse_scheme(str(scheme)) == scheme


@pytest.mark.parametrize("text", ["copies=0", "rs(4)", "rs(2,3)", "rs(40,2)", "three"])
def test_a_scheme_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="protect="):
        parse_scheme(text)


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("nodes", 0, "at least 1 nodes"),
        ("mtbf_h", -5.0, "at least 0.001 hours"),
        ("mtbf_h", math.nan, "a number of hours"),
        ("step_s", 0.0, "at least 0.001 s"),
        ("repair_h", math.inf, "a finite number of hours"),
        ("slots", 1, "at least 2 slots"),
        ("price", -1.0, "at least 0 per hour"),
    ],
)
def test_inputs_that_make_no_sense_are_refused_by_name(name, value, accepted):
    with pytest.raises(ConfigError, match=rf"{name}=.* cannot be used: give .*{accepted}"):
        Inputs(**{name: value})
