"""Pods that no machine takes, in words: from what the scheduler says of them. Pure.

A job may ask for more machines than the cluster has, and its pods then stay pending without a word. Whether that is for
ever nobody knows, since an autoscaler may add machines: so it is said, and never refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

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
