"""Audits and silent errors as a job's events tell them."""

from __future__ import annotations

from typing import Any

from deadpool.events.silent_errors import CaseSource, CaseVerdict, SilentErrorCase, paragraph, read_silent_errors

Record = dict[str, Any]
DIFFERS = {"ranks": [1], "nodes": ["n1"], "stage": "gradients", "part": "gradient of 3.weight, before it was reduced"}
FOUND = {
    "node": "n1",
    "rank": 1,
    "ranks": [1],
    "found": "changed",
    "digests": ["aa"],
    "others": ["bb"],
    "errors": 1,
    "reason": "rank 1 on node n1 says something else when the step is computed again",
}


def events(*named: tuple[str, Record]) -> list[Record]:
    return [{"t": 1000.0 + t, "what": what, **detail} for t, (what, detail) in enumerate(named)]


def audit(step: int, *more: tuple[str, Record], cause: str = "fault-1") -> list[Record]:
    ordered = ("step_audit_ordered", {"step": step, "cause": "start"})
    return events(ordered, *((what, {"step": step, "cause": cause, **detail}) for what, detail in more))


def findings(records: list[Record]) -> list[SilentErrorCase]:
    return read_silent_errors(records).findings


def test_audit_that_finds_nothing():
    (found,) = findings(audit(1000, ("step_audit_passed", {"ranks": 16, "computed": 2})))
    assert (found.source, found.verdict, found.is_error) == (CaseSource.AUDIT, CaseVerdict.ALIKE, False)
    assert "Audit of step 1,000" in paragraph(found)
    assert "all 16 ranks have computed it twice, and alike" in paragraph(found)
    assert found.causes == {"fault-1"}, "its recovery"


def test_rank_that_erred_is_named_with_the_evidence():
    passed = ("step_audit_passed", {"ranks": 2, "computed": 3})
    (found,) = findings(audit(6, ("step_audit_differs", DIFFERS), passed, ("corruption_found", FOUND)))
    assert found.verdict is CaseVerdict.NAMED and found.is_error
    text = paragraph(found)
    for words in (
        "the second time, rank 1 on n1 differed first, in its own gradients, before they were reduced",
        "gradient of 3.weight",
        "It was computed three times. Two computations agree in every rank",
        "Node n1 has erred, its error number 1",
        "aa instead of bb",
    ):
        assert words in text, words
    assert "\n" not in text
    facts = found.facts()
    assert (facts["stage"], facts["named"]) == ("gradients", [{"node": "n1", "ranks": [1]}])


def test_nobody_is_named_for_a_sum():
    unexplained = ("corruption_unexplained", {"reason": "one of several computations differs"})
    passed = ("step_audit_passed", {"ranks": 2, "computed": 3})
    differs = ("step_audit_differs", {**DIFFERS, "ranks": [0, 1], "nodes": ["n0", "n1"], "stage": "reduced"})
    (found,) = findings(audit(6, differs, passed, unexplained))
    assert found.verdict is CaseVerdict.NOBODY_NAMED
    assert "ranks 0, 1 on n0, n1" in paragraph(found)
    assert "Nobody can be named: one of several computations differs." in paragraph(found)


def test_audit_that_comes_to_nothing_and_audits_that_end():
    put_off, ended = (
        findings(audit(6, ("step_audit_put_off", {"reason": "a fault came first"})))[0],
        findings(audit(6, ("step_audit_differs", DIFFERS), ("step_audits_ended", {"reason": "no two agree"})))[0],
    )
    assert (put_off.verdict, ended.verdict) == (CaseVerdict.PUT_OFF, CaseVerdict.ENDED)
    assert "it came to nothing: a fault came first." in paragraph(put_off)
    assert "No step is audited any more: no two agree." in paragraph(ended)


def test_audit_under_way_is_lost_with_its_coordinator():
    (under_way,) = findings(audit(6))
    assert under_way.verdict is CaseVerdict.UNDER_WAY and under_way.ended is None
    (lost,) = findings([*audit(6), *events(("took_over", {"term": 2}))])
    assert lost.verdict is CaseVerdict.PUT_OFF and "coordinator" in paragraph(lost)


def test_replicas_that_differ():
    suspected = {"step": 21, "ranks": [0, 1], "nodes": ["n0", "n1"], "reason": "two replicas differ"}
    (found,) = findings(events(("corruption_suspected", suspected), ("corruption_found", {"step": 21, **FOUND})))
    assert (found.source, found.verdict) == (CaseSource.REPLICAS, CaseVerdict.NAMED)
    assert "ranks 0, 1 hold the same state otherwise" in paragraph(found)
    assert "Node n1 has erred" in paragraph(found)
    (outvoted,) = findings(events(("corruption_found", {"step": 21, **FOUND})))
    assert outvoted.verdict is CaseVerdict.NAMED and outvoted.source is CaseSource.REPLICAS
    (unsolved,) = findings(
        events(("corruption_suspected", suspected), ("corruption_unsolved", {"step": 21, "reason": "two redos"}))
    )
    assert unsolved.verdict is CaseVerdict.UNSOLVED and "two redos" in paragraph(unsolved)


def test_replicas_at_the_step_of_an_audit_that_found_nothing_are_another_finding():
    records = audit(6, ("step_audit_passed", {"ranks": 2, "computed": 2}))
    found = findings([*records, *events(("corruption_found", {"step": 6, **FOUND}))])
    assert {each.source for each in found} == {CaseSource.AUDIT, CaseSource.REPLICAS}


def test_memory_is_bounded_and_errors_stay():
    records = audit(1, ("step_audit_differs", DIFFERS), ("step_audit_passed", {"ranks": 2, "computed": 3}))
    for step in range(2, 2002):
        records += audit(step, ("step_audit_passed", {"ranks": 2, "computed": 2}))
    silent = read_silent_errors(records)
    assert silent.alike_count == 2000 and len(silent.findings) < 600
    assert [each.step for each in silent.findings if each.is_error] == [1]
