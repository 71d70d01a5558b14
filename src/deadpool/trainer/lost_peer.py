"""A peer is lost and the fence that says so has not come yet: what the script's thread does about it.

Two things can go wrong in that gap. An exception that a broken connection caused may be taken for the script's own, or
the other way round: what tells them apart is whether a connection of ours is broken, since no collective fails because
of a peer while all of them are whole. And a script may swallow that exception (`except Exception: continue`) and end
its step as if nothing had happened; the step must not count, on this rank, or others that have completed it would go
on from a version in which this rank's part is missing.

Both wait for the fence, for as long as a dead node needs to be found. Where none follows, connections have broken
between processes that live: nobody else will find that, and what the step has computed cannot be trusted. So this
process ends, and another takes its rank, which is a fault like any other.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import torch.distributed as dist

from deadpool.errors import GroupError
from deadpool.notes import note
from deadpool.trainer.control_flow import CODE_RESTART

if TYPE_CHECKING:
    from deadpool.trainer.job import Job

FENCE_BEATS = 10
"""Heartbeats to wait for the fence: two node timeouts."""


def was_caused_by_fault(job: Job, error: Exception) -> bool:
    """By the flag in the end. It is waited for where a peer's loss may have been felt before the fence came."""
    session = job.session
    suspected = _may_be_a_peers_doing(job, error)
    return session.core.is_aborted or (suspected and _await_fence(job))


def await_fence_if_peer_lost(job: Job) -> None:
    """Before a step counts. Asked after its block has ended: whatever was swallowed inside it had its cause before."""
    session = job.session
    if session.groups.has_lost_a_peer() and not session.core.is_aborted and not _await_fence(job):
        _leave(job)


def _may_be_a_peers_doing(job: Job, error: Exception) -> bool:
    groups = job.session.groups
    if groups.has_lost_a_peer() or isinstance(error, (GroupError, dist.DistError)):  # also of the rendezvous store
        return True
    return not groups.shows_losses and not isinstance(error, StopIteration)  # which no collective raises


def _await_fence(job: Job) -> bool:
    session = job.session
    assert session.settings is not None
    with job.waits.waiting():
        return session.await_halt(FENCE_BEATS * session.settings.heartbeat_s)


def _leave(job: Job) -> None:
    reason = f"a connection to a peer broke by the end of step {job.number}, and no fault was found that explains it"
    note(f"{reason}: the step does not count, and another process takes this rank")
    job.session.emit("peer_lost", step=job.number, reason=reason)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(CODE_RESTART)
