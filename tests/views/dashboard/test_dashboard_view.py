"""What the page shows follows from events, the coordinator's status and the journal alone."""

from __future__ import annotations

import json
import math
import time

import pytest
from dashboard_records import (
    STEP_S,
    T0,
    audits,
    fault,
    node_name,
    plan,
    progress,
    progress_record,
    small_run,
    start,
    status,
    write_run,
)

from deadpool.views.dashboard.headline import state
from deadpool.views.dashboard.history import JobHistory, interruptions
from deadpool.views.dashboard.run_files import RunFiles, loss_key
from deadpool.views.dashboard.view import Losses, RunFacts, view
from deadpool.views.dashboard.words import Series

SEATS = [node_name(index) for index in range(4)]
SPARE = node_name(4)


def history_of(*records) -> JobHistory:
    history = JobHistory(per_node=2)
    for record in records:
        history.add(record)
    return history


def shown(history: JobHistory, told=None, *, now: float | None = None):
    return view(history, Losses(), RunFacts(name="job"), told, now=now or history.last_t)


def figure(parts, name: str) -> str:
    return next(each["value"] for each in parts["head"]["figures"] if each["name"] == name)


def states(parts) -> dict[str, str]:
    return {row[0]: cells for row, cells in zip(parts["nodes"]["rows"], parts["cells"]["states"], strict=True)}


def running() -> list[dict]:
    return [*start(4, 1, per_rack=2), *progress(0, 100)]


def lost(until: str = "resumed", t: float = T0 + 60) -> list[dict]:
    return list(fault(1, t, SEATS, position=1, spare=SPARE, per_node=2, step=99, until=until))


def test_running_job_has_nothing_to_do():
    parts = shown(history_of(*running()), status(SEATS, [SPARE], 2, 90))
    assert parts["head"]["state"] == "running" and parts["head"]["actions"] == []
    assert figure(parts, "step") == "90"
    assert figure(parts, "rate") == "7,200"
    assert figure(parts, "goodput") == "100.00 %"
    assert figure(parts, "cost") == "0.15 ± 0.04 %"
    assert figure(parts, "protection") == "1 step at risk"
    assert states(parts) == {**dict.fromkeys(SEATS, "tt"), SPARE: "pp"}


def test_recovery_under_way_shows_its_phase_and_the_lost_node():
    history = history_of(*running(), *lost("fenced"))
    parts = shown(history, now=T0 + 62)
    assert parts["head"]["text"] == "recovering: fault-1"
    assert states(parts) == {SEATS[0]: "rr", SEATS[1]: "xx", SEATS[2]: "rr", SEATS[3]: "rr", SPARE: "ii"}
    assert parts["faults"][0]["seconds"] is None and list(parts["faults"][0]["phases_s"]) == ["unwind"]
    assert history.fold.lost_s(T0 + 62) == pytest.approx(2.0)


def test_recovered_job_tells_what_the_fault_cost_and_asks_for_a_spare():
    history = history_of(*running(), *lost())
    parts = shown(history, status([SEATS[0], SPARE, *SEATS[2:]], [], 2, 110))
    assert parts["head"]["state"] == "running"
    assert "Start a spare" in parts["head"]["actions"][0]
    only = parts["faults"][0]
    assert only["seconds"] == pytest.approx(1.206, abs=1e-3) and only["lost_steps"] == 1 and only["ranks"] == [2, 3]
    assert states(parts)[SPARE] == "tt" and states(parts)[SEATS[1]] == "xx"
    (go,) = [each for each in lost() if each["what"] == "go"]
    assert history.fold.lost_s() == pytest.approx(
        go["t"] - (T0 + 60) + STEP_S
    )  # stood still until go, then a step again
    assert history.fold.goodput(T0 + 108) == pytest.approx(1 - history.fold.lost_s() / 100)


def test_audits_and_who_has_erred_are_told_and_marked():
    parts = shown(history_of(*running(), *audits(T0 + 20, 20, 40, 60)))["audits"]
    assert parts["summary"] == "2 audits found all ranks alike, 1 error found"
    assert [(row["step"], row["is_error"]) for row in parts["rows"]] == [(20, False), (40, False), (60, True)]
    last = parts["rows"][-1]
    assert (last["verdict"], last["named"]) == ("named", [{"node": SEATS[1], "ranks": [2]}])
    assert last["ended"] == pytest.approx(T0 + 22.6) and f"Node {SEATS[1]} has erred" in last["text"]
    json.dumps(parts)
    assert shown(history_of(*running()))["audits"] == {"summary": "", "rows": []}


def test_second_fault_before_the_first_was_over_counts_each_moment_once():
    first = lost("fenced")
    second = [{**each, "cause": "fault-2"} for each in lost(t=T0 + 61)]
    history = history_of(*running(), *first, *second)
    found = interruptions(history)
    assert [each.ended is None for each in found] == [True, False]
    (go,) = [each for each in second if each["what"] == "go"]
    assert history.fold.lost_s() == pytest.approx(go["t"] - (T0 + 60) + STEP_S)


def test_script_that_began_anew_is_over_when_steps_come():
    """No rank reports that it has resumed, since the script runs from its first line."""
    records = [each for each in lost() if each["what"] != "resumed"]
    later = progress_record(T0 + 70, 101)
    before, after = history_of(*running(), *records), history_of(*running(), *records, later)
    assert interruptions(before)[0].ended is None
    assert interruptions(after)[0].ended == T0 + 70
    assert state(before, interruptions(before)) == ("running", "running")


def test_drain_is_no_fault():
    head = {"cause": "drain-1", "generation": "1.2"}
    drain = {
        "t": T0 + 60,
        "what": "drain",
        **head,
        "node": SEATS[1],
        "ranks": [2, 3],
        "successor": SPARE,
        "reason": "asked",
    }
    moved = [
        {"t": T0 + 61, "what": "handover", **head, "node": SEATS[1], "step": 99, "ranks": [2, 3], "reason": "asked"},
        {"t": T0 + 61.1, "what": "fenced", **head},
        *plan("drain-1", T0 + 61.2, [SEATS[0], SPARE, *SEATS[2:]], step=99, resume="v99@1.1"),
        {"t": T0 + 62.3, "what": "go", **head},
        {"t": T0 + 63, "what": "resumed", **head, "rank": 0, "step": 99},
        {"t": T0 + 64, "what": "left", **head, "node": SEATS[1], "reason": "asked"},
    ]
    assert states(shown(history_of(*running(), drain)))[SEATS[1]] == "dd"
    parts = shown(history_of(*running(), drain, *moved))
    assert [(each["kind"], each["lost_steps"]) for each in parts["faults"]] == [("drain", 0)]
    assert SEATS[1] not in states(parts)


@pytest.mark.parametrize(
    ("record", "cells", "advice"),
    [
        ({"what": "quarantined", "reason": "3 faults"}, "qq", "Check the machine"),
        ({"what": "straggler", "reason": "works long"}, "ss", "deadpool node replace --straggler"),
    ],
)
def test_bad_node_is_marked_and_there_is_advice(record, cells, advice):
    parts = shown(history_of(*running(), {"t": T0 + 60, "node": SEATS[2], **record}))
    assert states(parts)[SEATS[2]] == cells
    assert any(advice in each for each in parts["head"]["actions"])


def test_waiting_for_a_spare_says_how_long_and_what_to_do():
    wait = {"t": T0 + 61, "what": "awaiting_spare", "reason": "position 1 is empty", "deadline_s": 600.0}
    parts = shown(history_of(*running(), *lost("fenced"), wait))
    assert parts["head"]["text"] == "waiting for a spare"
    assert "within 10 min" in parts["head"]["actions"][0] and "--spare" in parts["head"]["actions"][0]


def test_rank_that_is_far_behind_lags():
    told = status(SEATS, [SPARE], 2, 95)
    told["nodes"][3]["steps"]["7"] = 60
    assert states(shown(history_of(*running()), told))[SEATS[3]] == "tl"


def test_coordinates_are_known_where_the_mesh_is():
    told = {"t": T0 + 9, "what": "mesh", "rank": 0, "names": ["pp", "dp", "tp"], "shape": [2, 2, 2]}
    assert shown(history_of(*running()))["nodes"]["mesh"] is None
    assert shown(history_of(*running(), told))["nodes"]["mesh"] == {"names": ["pp", "dp", "tp"], "shape": [2, 2, 2]}


def test_new_job_in_the_same_folder_begins_anew():
    ended = {"t": T0 + 90, "what": "failed", "reason": "no copy"}
    assert shown(history_of(*running(), *lost(), ended))["head"]["state"] == "failed"
    again = history_of(*running(), *lost(), ended, {"t": T0 + 99, "what": "joined", "node": "new", "spare": False})
    assert shown(again)["head"]["state"] == "forming" and list(again.nodes) == ["new"] and shown(again)["faults"] == []


def test_copies_say_who_holds_what():
    told = status(SEATS, [SPARE], 2, 95)
    told["ranks"][4]["pushed_version"] = 90  # of position 2
    parts = shown(history_of(*running()), told)["copies"]
    assert parts["rows"][0]["node"] == SEATS[2] and parts["rows"][0]["version"] == 90
    assert parts["rows"][0]["holders"] == [SEATS[3]] and parts["rows"][0]["holds_for"] == [SEATS[1]]


def test_series_stays_small_and_keeps_peaks():
    series = Series(limit=100)
    for index in range(100_000):
        series.add(index, 50.0 if index == 31_234 else math.sin(index))
    series.add(1, math.nan)
    assert len(series.xs) <= 200 and max(series.ys) == 50.0
    assert series.points() == sorted(series.points())


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"lr": 1, "loss": 2}, "loss"),
        ({"eval": {"accuracy": 1}, "train": {"loss": 2}}, "train/loss"),
        ({"loss_scale": 3}, "loss_scale"),
        ({"lr": 1, "done": True}, ""),
    ],
)
def test_which_value_is_the_loss(values, key):
    assert loss_key(values) == key


def test_folder_is_read_as_it_grows(tmp_path):
    files = RunFiles(small_run(tmp_path / "a run"))
    files.refresh()
    assert files.history.ended is not None and files.losses.key == "train/loss"
    assert len(files.losses.by_step.xs) == 200
    with (files.folder / "events.jsonl").open("a") as log:
        log.write('{"t": 1e10, "what": "progress", "st')
    files.refresh()
    before = files.history.last_t
    with (files.folder / "events.jsonl").open("a") as log:
        log.write('ep": 300}\nnonsense\n{"what": 3}\n["list"]\n{"t": 1e10, "what": "planned"}\n')
    files.refresh()
    assert (before, files.history.last_t) == (T0 + 120, 1e10)


def test_fault_in_detail_has_phases_ranks_and_ends_of_logs(tmp_path):
    files = RunFiles(small_run(tmp_path / "run"))
    (files.folder / "logs" / f"{SPARE}.0.log").write_text("<b>loaded</b>\n")
    (tmp_path / "outside.log").write_text("not yours")
    files.refresh()
    detail = files.fault("fault-1")
    assert [phase["name"] for phase in detail["phases"]] == ["detect", "unwind", "plan", "prepare", "connect", "redo"]
    assert detail["row_count"] == 8 and {row["rank"] for row in detail["rows"][:2] if row["lost"]} == {2, 3}
    assert detail["logs"] == [{"rank": 2, "trainer": f"{SPARE}.0", "part": "took over", "text": "<b>loaded</b>\n"}]
    assert files._end_of_log("../../outside") == ""
    assert files.fault("fault-9") is None


def test_thousand_nodes_are_read_and_shown_in_time(tmp_path):
    """A page polls several times a second; against parsing the log once, building a view is little."""
    seats = [node_name(index) for index in range(1024)]
    records = [
        *start(1024, 8),
        *progress(0, 100),
        *fault(1, T0 + 60, seats, position=7, spare=node_name(1024), per_node=8, step=99),
    ]
    folder = write_run(tmp_path / "run", records, nodes=1024, per_node=8)
    files, told = RunFiles(folder), status(seats, [node_name(1024 + i) for i in range(8)], 8, 100)
    files.refresh()
    parts = view(files.history, files.losses, files.job(), told, now=T0 + 100)
    assert sum(map(len, parts["cells"]["states"])) == 8 * (1024 + 8)  # the lost node's spare is among the told ones
    assert len(files.fault("fault-1")["rows"]) == 64
    parsed = least_cpu_s(lambda: [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()])
    built = least_cpu_s(lambda: view(files.history, files.losses, files.job(), told, now=T0 + 100))
    assert built < 3 * parsed


def least_cpu_s(work) -> float:
    """Of several attempts: what else the machine does only adds to it."""
    took = []
    for _ in range(5):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return min(took)
