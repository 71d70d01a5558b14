"""What the operator concludes from what pods and coordinators say. Pure.

`PodView` and `LostPods`: which pods DeadPool has declared dead while Kubernetes still believes that they run. Pure;
time is an argument.

A pod was part of the job once (an annotation says which container of it), is not any more, and by the API server's
knowledge that container runs on: if only the agent had ended, its kubelet would have reported that within a second
or two. So its machine is dead, or cut off, and the job has gone on without it.

What a DeadPoolJob shows, from what its coordinator says. Pure.

`scheduler_message` and `in_words`: Pods that no machine takes, in words: from what the scheduler says of them. Pure.

A job may ask for more machines than the cluster has, and its pods then stay pending without a word. Whether that is
for ever nobody knows, since an autoscaler may add machines: so it is said, and never refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from deadpool.clusters.kubernetes.job_state import COMPLETED

JOINED = "deadpool.dev/joined"
"""Annotation of a pod: the container that has joined the job."""
REPORT_S = 2.5
"""The time that a kubelet has to report that a container has ended."""
TAKEOVER_S = 15.0
"""The time that spares have to find a coordinator that has just taken over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    name: str
    node: str
    container: str  # the id of the agent's container; empty: it does not run, as far as is known
    joined: str  # the container that has joined the job, as the pod's annotation says
    leaving: bool  # it was deleted, and has its grace period


@dataclass(slots=True)
class LostPods:
    """Finds the pods of one job whose nodes are lost."""

    _term: int | None = None
    _trusted_from: float = 0.0
    _missing_since: dict[str, float] = field(default_factory=dict)

    def find(self, pods: Iterable[PodView], members: set[str], term: int, now: float) -> list[PodView]:
        """`members` are the nodes that the coordinator of this term counts."""
        if term != self._term:
            first = self._term is None
            self._term, self._missing_since = term, {}
            self._trusted_from = now if first and term == 1 else now + TAKEOVER_S
        known = list(pods)
        missing = {pod.name for pod in known if _is_missing(pod, members)}
        self._missing_since = {name: self._missing_since.get(name, now) for name in sorted(missing)}
        if now < self._trusted_from:
            return []
        return [pod for pod in known if pod.name in missing and now - self._missing_since[pod.name] >= REPORT_S]


def _is_missing(pod: PodView, members: set[str]) -> bool:
    was_there = bool(pod.container) and pod.joined == pod.container
    return was_there and not pod.leaving and pod.name not in members


PHASES = {"forming": "Starting", "running": "Running", "salvaging": "Failing", "ended": "Ending"}
RECOVERING = "Recovering"
"""All other phases of a coordinator are parts of a recovery."""
WAITING = "Waiting"
"""No coordinator leads: none has started yet, or another one is being elected."""
INVALID = "Invalid"
"""The spec cannot work; the reason says why."""


SPARES = "spares"
"""The only field of a job whose change is followed."""


def changes_without_effect(made_from: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Fields of the spec that were changed since the job's objects were made, as a sentence."""
    fields = {*made_from, *wanted} - {SPARES}
    if changed := sorted(name for name in fields if made_from.get(name) != wanted.get(name)):
        return f"changed without effect: {', '.join(changed)} (only spares can be: delete the job and make it anew)"
    return ""


def described(answer: dict[str, Any], nodes_wanted: int, remark: str = "") -> dict[str, Any]:
    """The fields of the status that change while the job runs. A remark is shown in place of the cause."""
    active = sum(node["role"] == "active" for node in answer["nodes"])
    shown = {
        "phase": PHASES.get(answer["phase"], RECOVERING),
        "step": answer["step"],
        "watermark": answer["watermark"],
        "nodes": f"{active}/{nodes_wanted}",
        "spares": answer["spares"],
        "reason": remark or answer["cause"],
        "lastFault": answer.get("last_fault"),
    }
    return {name: value for name, value in shown.items() if value not in (None, "")}


def ended(outcome: str, reason: str) -> dict[str, Any]:
    return {"phase": "Completed" if outcome == COMPLETED else "Failed", "reason": reason}


def changes(shown: dict[str, Any], before: dict[str, Any], *, due: bool) -> dict[str, Any]:
    """What is to be written. Steps alone are written only now and then (`due`): each write costs the API server a
    revision of the object."""
    changed = {name: value for name, value in shown.items() if before.get(name) != value}
    return changed if due or set(changed) - {"step", "watermark"} else {}


LOOK_AGAIN_S = 10.0
"""What is waited for is looked at, and told, no more often."""
_SCHEDULED, _FALSE = "PodScheduled", "False"


def scheduler_message(pod: Any) -> str | None:
    """Why no machine takes this pod; None: one has, or the scheduler has not looked at it yet."""
    if pod.spec.nodeName or pod.metadata.deletionTimestamp is not None:
        return None
    for condition in pod.status.conditions or []:
        if condition.type == _SCHEDULED and condition.status == _FALSE:
            return condition.message or condition.reason or "the scheduler does not say why"
    return None


def in_words(messages: Iterable[str], pods_wanted: int) -> str:
    """One sentence with the reason that most pods have; empty: no pod waits."""
    found = Counter(messages)
    if not found:
        return ""
    count, (reason, _) = found.total(), found.most_common(1)[0]
    wait = "pod waits" if count == 1 else "pods wait"
    return f"{count} {wait} for a machine (the job asks for {pods_wanted}): {reason.rstrip('. ')}"
