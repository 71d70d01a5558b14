"""Handles the time between the loss of a peer and the fence that announces it, on the script's thread.

Two things can go wrong in that time. First, an exception that a broken connection caused may be taken for an error of
the script, or the other way round. They are told apart by whether a connection is broken, since no collective fails
because of a peer while all connections are intact. Second, a script may swallow that exception (`except Exception:
continue`) and end its step as if nothing had happened. Such a step must not count: other ranks that have completed it
would go on from a version that lacks this rank's part.

In both cases this rank waits for the fence, for as long as it takes to detect a dead node. If no fence comes, the
connection has broken between two live processes: no other process will detect that, and the results of the step cannot
be trusted. So this process ends and another one takes its rank, as after any fault.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import torch.distributed as dist

from deadpool.errors import GroupError, Inexact
from deadpool.host.notes import note
from deadpool.trainer.control_flow import CODE_RESTART

if TYPE_CHECKING:
    from deadpool.trainer.job import Job

FENCE_BEATS = 10
"""How many heartbeat intervals to wait for the fence: two node timeouts."""


def was_caused_by_fault(job: Job, error: Exception) -> bool:
    """Whether the abort flag is up. If the loss of a peer may have caused the error, the flag is waited for."""
    session = job.session
    suspected = _may_be_a_peers_doing(job, error)
    return session.core.is_aborted or (suspected and await_fence(job))


def await_fence_if_peer_lost(job: Job) -> None:
    """Called after a step's block and before the step counts: the cause of a swallowed exception shows by then."""
    session = job.session
    if session.groups.has_lost_a_peer() and not session.core.is_aborted and not await_fence(job):
        _end_process(job)


def _may_be_a_peers_doing(job: Job, error: Exception) -> bool:
    groups = job.session.groups
    if isinstance(error, Inexact):
        return False
    if groups.has_lost_a_peer() or isinstance(error, (GroupError, dist.DistError)):  # also errors of the store
        return True
    return not groups.shows_losses and not isinstance(error, StopIteration)  # no collective raises StopIteration


def await_fence(job: Job) -> bool:
    session = job.session
    assert session.settings is not None
    with job.waits.waiting():
        return session.await_halt(FENCE_BEATS * session.settings.heartbeat_s)


def _end_process(job: Job) -> None:
    reason = f"a connection to a peer broke before the end of step {job.number}, and no fault explains it"
    note(f"{reason}: the step does not count, and another process takes this rank")
    job.session.emit("peer_lost", step=job.number, reason=reason)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(CODE_RESTART)
