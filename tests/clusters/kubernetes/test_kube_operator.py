"""Which pods the operator takes for lost, and what it shows and writes. Without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from deadpool.clusters.kubernetes.operator.status import (
    REPORT_S,
    TAKEOVER_S,
    LostPods,
    PodView,
    changes,
    changes_without_effect,
    described,
    ended,
    in_words,
    scheduler_message,
)


def pod(name: str = "a", **changed: Any) -> PodView:
    facts: dict[str, Any] = {"node": "m1", "container": "c1", "joined": "c1", "leaving": False}
    return PodView(name=name, **(facts | changed))


def found(pods: list[PodView], members: set[str], *, seconds: float = REPORT_S, term: int = 1) -> list[str]:
    lost = LostPods()
    lost.find(pods, members, term, 100.0)
    return [each.name for each in lost.find(pods, members, term, 100.0 + seconds)]


def test_member_that_is_gone_while_its_container_seems_to_run_is_lost() -> None:
    assert found([pod("a"), pod("b")], {"b"}) == ["a"]


def test_kubelet_has_time_to_report_that_only_the_agent_ended() -> None:
    assert found([pod("a")], {"b"}, seconds=REPORT_S - 0.1) == []


@pytest.mark.parametrize(
    "changed",
    [{"container": ""}, {"joined": ""}, {"joined": "an earlier one"}, {"leaving": True}],
    ids=["ended", "never joined", "restarted", "deleted"],
)
def test_pod_that_is_not_to_be_expected_is_not_lost(changed: dict[str, Any]) -> None:
    assert found([pod("a", **changed)], {"b"}) == []


def test_pod_that_came_back_in_between_is_not_lost() -> None:
    lost = LostPods()
    for members, at in (({"b"}, 0.0), ({"a", "b"}, 2.0), ({"b"}, 4.0)):
        assert lost.find([pod("a")], members, 1, at) == []


def test_new_coordinator_is_believed_only_after_spares_have_found_it() -> None:
    lost = LostPods()
    lost.find([pod("a")], {"a"}, 1, 0.0)
    for at in (10.0, 10.0 + REPORT_S, 9.9 + TAKEOVER_S):
        assert lost.find([pod("a")], set(), 2, at) == []
    assert [each.name for each in lost.find([pod("a")], set(), 2, 10.0 + TAKEOVER_S)] == ["a"]


def test_restarted_operator_finds_what_it_missed() -> None:
    """The mark of the pod is all that is needed: the loss itself was before."""
    assert found([pod("a")], {"b"}) == ["a"]
    assert found([pod("a")], {"b"}, term=3, seconds=TAKEOVER_S) == ["a"]


ANSWER = {
    "phase": "running",
    "step": 7,
    "watermark": 6,
    "spares": 1,
    "cause": "start",
    "nodes": [{"role": "active"}, {"role": "active"}, {"role": "spare"}],
    "last_fault": None,
}


def test_running_job_is_shown() -> None:
    shown = described(ANSWER, 2)
    assert shown == {"phase": "Running", "step": 7, "watermark": 6, "nodes": "2/2", "spares": 1, "reason": "start"}


def test_what_is_not_known_yet_is_not_written() -> None:
    shown = described(ANSWER | {"phase": "forming", "cause": "", "watermark": None}, 2)
    assert shown == {"phase": "Starting", "step": 7, "nodes": "2/2", "spares": 1}


@pytest.mark.parametrize("phase", ["fencing", "waiting", "preparing", "connecting"])
def test_recovery_is_shown_with_its_fault(phase: str) -> None:
    shown = described(ANSWER | {"phase": phase, "last_fault": "link to node a lost"}, 2)
    assert (shown["phase"], shown["lastFault"]) == ("Recovering", "link to node a lost")


def test_change_without_effect_is_shown() -> None:
    made = {"image": "a", "nodes": 2, "spares": 1}
    assert changes_without_effect(made, made | {"spares": 3}) == ""
    assert changes_without_effect(made, {"image": "a", "nodes": 2}) == ""
    said = changes_without_effect(made, {"image": "b", "nodes": 2, "spares": 1, "port": 7})
    assert "image, port" in said
    assert described(ANSWER, 2, said)["reason"] == said


def test_last_fault_stays_when_another_coordinator_leads() -> None:
    assert "lastFault" not in changes(described(ANSWER, 2), {"lastFault": "old"}, due=True)


def test_steps_alone_are_written_now_and_then() -> None:
    before = described(ANSWER, 2)
    later = before | {"step": 8, "watermark": 7}
    assert changes(later, before, due=False) == {}
    assert changes(later, before, due=True) == {"step": 8, "watermark": 7}
    assert changes(later | {"spares": 0}, before, due=False) == {"step": 8, "watermark": 7, "spares": 0}
    assert changes(before, before, due=True) == {}


def test_outcome_is_shown() -> None:
    assert ended("completed", "the script has ended")["phase"] == "Completed"
    assert ended("failed", "no spare")["phase"] == "Failed"


def pending(*conditions: dict[str, Any], node: str | None = None, deleted: str | None = None) -> Any:
    """As the API server describes a pod."""
    core = pytest.importorskip("lightkube.models.core_v1")
    content = {
        "metadata": {"name": "t-agents-x", "deletionTimestamp": deleted},
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Pending", "conditions": list(conditions)},
    }
    return core.Pod.from_dict(content)


NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available."
UNSCHEDULED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_GPU}


def test_pod_that_no_machine_takes() -> None:
    assert scheduler_message(pending(UNSCHEDULED)) == NO_GPU
    assert scheduler_message(pending({"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"})) == (
        "SchedulingGated"
    )


def test_pod_that_does_not_wait_for_a_machine() -> None:
    assert scheduler_message(pending()) is None, "the scheduler has not looked at it"
    assert scheduler_message(pending({"type": "PodScheduled", "status": "True"}, node="m1")) is None
    assert scheduler_message(pending(UNSCHEDULED, deleted="2026-11-18T00:00:00Z")) is None


def test_what_pods_wait_for_in_words() -> None:
    assert in_words([], 6) == ""
    assert in_words(["no room."], 6) == "1 pod waits for a machine (the job asks for 6): no room"
    assert in_words(["no room", NO_GPU, NO_GPU], 6).startswith("3 pods wait for a machine (the job asks for 6): 0/3 ")
    waits = in_words([NO_GPU], 3)
    assert described(ANSWER, 2, waits)["reason"] == waits
