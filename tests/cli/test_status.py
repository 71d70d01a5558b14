"""`deadpool status` as people see it, for a coordinator that has heard from its nodes."""

from __future__ import annotations

import pytest

from deadpool.cli.show.status import _print, _size
from deadpool.control.coordinator.status import describe
from deadpool.protocol.causes import Widening
from deadpool.protocol.coordinator.commits.interval_needs import REMEDIES, Need
from deadpool.protocol.coordinator.core import Coordinator
from deadpool.protocol.coordinator.membership.stragglers import Straggler
from deadpool.protocol.coordinator.outbox import CoordinatorConfig, Deadlines
from deadpool.protocol.identity import Address, Generation, Layout, Schedule, Version
from deadpool.protocol.inputs import FromAgent
from deadpool.protocol.messages import Join, Settings, SlotReport

FIGURES = {
    "unique_bytes": 8_000_000,
    "replica_bytes": 4_000_000,
    "record_bytes": 9_000,
    "peers": (1,),
    "pushed_version": 6,
    "stall_share": 0.0004,
    "copy_s": 0.02,
    "wire_bytes": {"n1": 8_009_300},
}


def core_of(racks, budget=0.0, slots=2, **more):
    deadlines = Deadlines(node_s=9, fence_s=9, prepare_s=9, connect_s=9, spare_wait_s=9, hang_s=9)
    shape = Layout(positions=len(racks), per_node=1, holders=1)
    settings = Settings(layout=shape, slots=slots, heartbeat_s=1, unwind_s=4, overhead_budget=budget, **more)
    core = Coordinator(CoordinatorConfig(settings=settings, deadlines=deadlines, schedule=Schedule(every=2)))
    for index, rack in enumerate(racks):
        join = Join(node=f"n{index}", incarnation="a", data=Address(host="h", port=1), spare=False, rack=rack)
        core.step(FromAgent(node=join.node, message=join), now=0)
    return core


def shown(core, facts, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    _print(describe(core, facts))
    return capsys.readouterr().out


def test_bytes_of_a_rank_are_shown_per_step(capsys, monkeypatch):
    facts = {"n0": {"rank_figures": {"0": FIGURES}, "bytes_pushed": 1}}
    core = core_of([None, None])
    body = describe(core, facts)
    per_step = {"copied_bytes_per_step": 6_004_500, "wire_bytes_per_step": 4_004_650}
    assert body["ranks"][0] == {"rank": 0, "node": "n0", **FIGURES, **per_step}
    nothing = {"copied_bytes_per_step": None, "wire_bytes_per_step": None}
    assert body["ranks"][1] == {"rank": 1, "node": "n1", **nothing}, "it has not told yet"
    assert "rank_figures" not in body["nodes"][0]
    text = shown(core, facts, capsys, monkeypatch)
    assert "8.0 MB" in text and "9.0 kB" in text and "4.0 MB" in text and "6.0 MB" in text and "0.04 %" in text
    assert "rack" not in text


def test_interval_is_shown_as_it_was_last_ordered(capsys, monkeypatch):
    core, facts = core_of([None, None], budget=0.001), {"n0": {"rank_figures": {"0": FIGURES}}}
    assert "one snapshot every 2 steps, which may cost at most 0.1 % of the step time" in shown(
        core, facts, capsys, monkeypatch
    )
    core.commits.reschedule(Schedule(every=8, start=20))
    body = describe(core, facts)
    assert body["interval"] == {"every": 8, "from": 20, "budget": 0.001, "widened": None}
    assert body["ranks"][0]["wire_bytes_per_step"] == 8_009_300 / 8
    assert "one snapshot every 8 steps from version 20 on" in shown(core, facts, capsys, monkeypatch)


def test_slots_are_shown_with_the_memory_that_they_may_take(capsys, monkeypatch):
    core = core_of([None, None])
    assert describe(core, {})["slots"] == {"asked": 2}
    assert "each rank has 2 slots for snapshots, as asked for" in shown(core, {}, capsys, monkeypatch)
    core = core_of([None, None], slots=0)
    assert describe(core, {})["slots"] is None
    for node, least in (("n0", 3), ("n1", 4)):
        report = SlotReport(least=least, at_most=5, limit=Widening.MEMORY, arena_bytes=64_000_000_000)
        core._monitor.interval_chooser.on_slots(node, report)
    text = shown(core, {"n1": {"arena_bytes": 20_800_000_000}}, capsys, monkeypatch)
    assert "each rank has 3 to 4 slots for snapshots, and up to 5 (by memory) where" in text
    assert "copies take 20.8 GB of 64.0 GB that they may take on node n1, half of its memory" in text


def test_wide_interval_is_shown_with_its_reason_and_its_remedy(capsys, monkeypatch):
    core = core_of([None, None], budget=0.001)
    reason = "versions take 3.20 s to be committed"
    core._monitor.interval_chooser.widened = Need(steps=3.2, cause=Widening.SLOTS, reason=reason)
    assert describe(core, {})["interval"]["widened"] == {
        "by": "slots",
        "reason": reason,
        "remedy": REMEDIES[Widening.SLOTS],
    }
    assert f"not more often: {reason} (to change that: raise --slots" in shown(core, {}, capsys, monkeypatch)


def test_without_a_budget_that_is_said(capsys, monkeypatch):
    assert "every 2 steps, whatever that costs" in shown(core_of([None, None]), {}, capsys, monkeypatch)


def test_racks_are_shown_where_they_were_given(capsys, monkeypatch):
    text = shown(core_of(["left", "right", None]), {}, capsys, monkeypatch)
    assert "rack" in text and "left" in text and "right" in text
    assert "copies in their own rack" not in text


def test_copies_that_share_their_ranks_rack_are_named(capsys, monkeypatch):
    assert "copies in their own rack: those of positions 0, 1" in shown(
        core_of(["left", "left"]), {}, capsys, monkeypatch
    )


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2.5e6, "2.5 MB"), (7e12, "7000.0 GB")]
)
def test_sizes(count, text):
    assert _size(count) == text


def test_what_an_operator_should_know_is_said(capsys, monkeypatch):
    core = core_of([None, None, None])
    assert "no spare: after a loss the job waits for one" in shown(core, {}, capsys, monkeypatch)
    spare = Join(node="s0", incarnation="a", data=Address(host="h", port=1), spare=True)
    core.step(FromAgent(node="s0", message=spare), now=0)
    assert "no spare" not in shown(core, {}, capsys, monkeypatch)
    slow = Straggler(node="n1", rank=1, own_s=0.4, usual_s=0.1, step_s=0.5)
    core.stragglers.known["n1"] = slow
    core.drains.begin(core.members["n1"], "asked to", now=0)
    text = shown(core, {}, capsys, monkeypatch)
    assert "slow: node n1 works 0.4 s at each step of 0.5 s, 4.0 times as long as the other nodes (0.1 s)" in text
    assert "node n1 is being drained (rehearsing); its ranks go to node s0" in text


def test_without_a_spare_a_job_that_may_shrink_is_not_said_to_wait(capsys, monkeypatch):
    text = shown(core_of([None, None, None], without_spare="shrink"), {}, capsys, monkeypatch)
    assert "no spare: after a loss the job shrinks if it can, or waits for one; add it with" in text


def test_slow_node_is_shown_also_where_the_others_hardly_work(capsys, monkeypatch):
    core = core_of([None, None, None])
    core.stragglers.known["n1"] = Straggler(node="n1", rank=1, own_s=0.4, usual_s=0.0, step_s=0.5)
    text = shown(core, {}, capsys, monkeypatch)
    assert "node n1 works 0.4 s at each step of 0.5 s, and the other nodes hardly at all" in text


def body_of(**changes):
    return {**describe(core_of([None, None]), {}), "phase": "running", **changes}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"watermark": None, "lag_steps": None}, "NOT PROTECTED YET: no version is complete"),
        ({"watermark": 6, "lag_steps": 2, "protected": False}, "copies of version 6 are still on their way"),
        (
            {"watermark": 6, "lag_steps": 2, "protected": True},
            "protected: every copy of version 6 is in place; a loss now",
        ),
        ({"watermark": 6, "lag_steps": 1, "protected": True}, "a loss now repeats 1 completed step\n"),
        ({"watermark": 6, "lag_steps": 0, "protected": True}, "a loss now repeats no step"),
    ],
)
def test_protection_is_said_in_words(capsys, monkeypatch, changes, text):
    monkeypatch.setenv("COLUMNS", "200")
    _print(body_of(**changes))
    assert text in capsys.readouterr().out


def test_the_choice_of_a_scheme_is_told_with_its_reason(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    scheme = {"scheme": "rs(4,1)", "reason": "the job has chosen it: n3 has only 8% of its memory left"}
    _print(body_of(protection={"guarded": {}, "held_once_more": [], "environment": [], "scheme": scheme}))
    assert "snapshots are protected by rs(4,1): the job has chosen it: n3 has only 8%" in capsys.readouterr().out
    _print(body_of())
    assert "snapshots are protected by" not in capsys.readouterr().out


def test_lag_is_never_negative():
    core = core_of([None, None])
    core.commits._commit(Version(Generation(1, 1), 6))
    assert describe(core, {})["lag_steps"] == 0, "no heartbeat has told of these steps yet"


def test_disks_checkpoints_and_standbys_are_told_where_something_is_wrong(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    body = describe(core_of([None, None]), {})
    _print(body | {"standbys": {"left": 1, "of": 1}})
    assert "1 of 1 standby coordinators answer" in capsys.readouterr().out
    _print(
        body
        | {
            "standbys": {"left": 0, "of": 1},
            "checkpoint_failing": {"attempts": 3, "reason": "node n1: no space left"},
            "dropped": [{"what": "events", "node": None, "dropped": 7}],
        }
    )
    text = capsys.readouterr().out
    assert "no standby coordinator: the loss of the coordinator's machine would end the job" in text
    assert "3 attempts failed, the last one: node n1: no space left" in text
    assert "7 events are lost" in text


def test_devices_that_err_are_told(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    body = describe(core_of([None, None]), {})
    _print(body)
    assert "corruption" not in capsys.readouterr().out
    found = {"acts": True, "suspected_step": 7, "errors": {"n1": 1}, "unsolved": ""}
    _print(body | {"corruption": found})
    text = capsys.readouterr().out
    assert "node n1 has erred 1 time; test it" in text
    assert "replicas differed at step 7, which is computed again" in text
    _print(body | {"corruption": {**found, "suspected_step": None, "unsolved": "everybody repeats it"}})
    assert "nothing is done about it any more: everybody repeats it" in capsys.readouterr().out
