"""Which pods DeadPool has declared dead while Kubernetes still believes that they run. Pure; time is an argument.

A pod was part of the job once (an annotation says which container of it), is not any more, and by the API server's
knowledge that container runs on: if only the agent had ended, its kubelet would have reported that within a second or
two. So its machine is dead, or cut off, and the job has gone on without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

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
