"""Refuses a job whose nodes have different torches.

Ranks under two versions would not compute the same bits, and where one node passes the self-test of torch_check.py and
another one does not, they would make groups in two ways that never meet. Ranks that begin a script compare themselves
with rank 0 when they make their first group. A spare compares itself with the live rank whose recording it gets, before
its rehearsal, and its node leaves the job, so that nobody counts on it. Ranks that begin from a checkpoint compare
nothing: the torch of an earlier job may be another one, and they begin as spares do.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from deadpool.backend.groups import Groups
from deadpool.backend.plain_groups import PlainGroups
from deadpool.errors import Unsuitable
from deadpool.trainer.process import torch_check

_KEY = "torch of rank 0"


def name() -> str:
    """What has to be the same on all nodes."""
    level = torch_check.verdict().level
    lacking = "" if level is torch_check.Level.WHOLE else ", which lacks something that DeadPool relies on"
    return f"torch {torch.__version__}{lacking}"


def compare_with_rank_0(groups: Groups | PlainGroups, store: dist.Store, rank: int) -> None:
    """Waits for rank 0, as the group that is made next would, and as long as that."""
    if rank == 0:
        store.set(_KEY, name())
    elif (theirs := groups.read(store, _KEY).decode()) != name():
        raise different(theirs, of="rank 0")


def different(theirs: str, *, of: str) -> Unsuitable:
    return Unsuitable(
        f"this node has {name()}; {of} has {theirs}: all nodes of a job need the same torch, complete or not"
    )
