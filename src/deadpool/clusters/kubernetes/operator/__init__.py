"""The operator: makes the objects of each DeadPoolJob, shows how its job is, and has lost pods replaced at once.

A job needs it for none of that to train: without the operator, lost pods are replaced when Kubernetes itself takes
their machine for lost. What the operator knows lies in the cluster, so it may be restarted at any time.
"""

from __future__ import annotations

from deadpool.clusters.kubernetes.operator.watch import run

__all__ = ["run"]
