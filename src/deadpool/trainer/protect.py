"""`deadpool.protect`, which gives a training script its loop, and `deadpool.join`, an alias of init_process_group."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch.distributed as dist
from torch import nn

from deadpool.errors import ConfigError
from deadpool.host.notes import note
from deadpool.snapshot.copying.copying import make_lane
from deadpool.snapshot.state.state import ProtectedState
from deadpool.trainer import current, interface
from deadpool.trainer.adapters import Adapter, adapters_for
from deadpool.trainer.adapters.ddp import ddp_modules
from deadpool.trainer.adapters.ddp_state import ddp_states
from deadpool.trainer.adapters.fsdp2 import shard_again
from deadpool.trainer.adapters.wrappers import require_wrappers
from deadpool.trainer.capture.boundary_groups import GROUPS, BoundaryGroups
from deadpool.trainer.job import Job
from deadpool.trainer.job_journal import JOURNAL, JobJournal
from deadpool.trainer.process import torch_check
from deadpool.trainer.process.environment import require_current_device
from deadpool.trainer.process.session import Session
from deadpool.trainer.shares.layout import Claims, apply_claims
from deadpool.trainer.shares.shares import Makers, make_own
from deadpool.trainer.unprotected import UnprotectedRank


class JobRank:
    """The place of this process in a protected job: its rank, the number of ranks, and its rank on its node."""

    def __init__(self, session: Session) -> None:
        assert session.settings is not None
        self._session = session
        self._layout = session.settings.layout
        self.rank = session.rank
        self.world_size = self._layout.world_size
        self.local_rank = self._layout.local_rank(self.rank)

    def protect(
        self,
        *,
        replicated: Claims | None = None,
        adapters: Iterable[Adapter] = (),
        shares: Makers | None = None,
        **objects: object,
    ) -> Job:
        """Protects objects as `deadpool.protect` does, for this rank."""
        if current.job is not None:
            raise ConfigError("protect() was called twice: pass all objects to one call")
        made = make_own(shares or {}, objects, self.rank)
        objects = {**objects, **made}
        modules = _modules(objects)
        require_current_device(param.device for module in modules for param in module.parameters())
        require_wrappers(modules)
        shard_again(modules)
        adapters = [*adapters_for(modules, plain=torch_check.is_plain()), *adapters]
        derived = {key: ranks for adapter in adapters for key, ranks in adapter.replicas().items()}
        journal = JobJournal(self._session)
        assert current.default_group is not None and self._session.settings is not None
        state = ProtectedState(
            objects,
            replicas=apply_claims(derived, objects, replicated or {}, self.rank),
            rank=self.rank,
            node_of=self._layout.position_of,
            make_lane=functools.partial(make_lane, aside_limit_bytes=int(self._session.settings.set_aside_gb * 1e9)),
            companions={
                GROUPS: BoundaryGroups(self._session, current.default_group),
                JOURNAL: journal,
                **ddp_states(ddp_modules(modules), objects.values()),
            },
        )
        current.job = Job(self._session, state, adapters, journal, shares, made)
        return current.job


def protect(
    *,
    replicated: Claims | None = None,
    adapters: Iterable[Adapter] = (),
    shares: Makers | None = None,
    **objects: object,
) -> interface.Job:
    """Protects the given objects and returns the job, whose `steps` is the training loop. Call it once.

    Pass every object whose state the loop changes, under any keywords: model=, optimizer=, scheduler=, data=, and
    so on. Modules, optimizers, dicts of tensors and all objects with `state_dict` and `load_state_dict` are
    accepted. The state of random number generators is captured without being passed.

    State that several ranks hold identically (DDP, HSDP, replicated DTensors) is recognised and not sent.
    `replicated` overrides that per object, as in `replicated={"ema": group}`: the object's parameters, with their
    optimizer state, are identical on all ranks of that process group. None instead of a group means that no other
    rank holds them, so they are always sent.

    `shares`, as in `shares={"data": make_loader}`, names functions that make an object for a given rank, such as a
    loader of that rank's data. The objects are protected like others. In a step they are those of each share:
    `share.data` (docs/howto/shrink.md).

    `adapters` know libraries that keep more than state, such as caches of one step (docs/howto/adapter.md).

    ConfigError: the objects cannot be protected; the message names the object and says what would be accepted.
    """
    return _joined().protect(replicated=replicated, adapters=adapters, shares=shares, **objects)


def _joined() -> JobRank | UnprotectedRank:
    """The place of this process in the job whose default group the script has made."""
    if not dist.is_initialized():
        raise ConfigError(
            "protect() was called before there is a process group: call torch.distributed.init_process_group first"
        )
    return join()


def join(backend: str | None = None) -> JobRank | UnprotectedRank:
    """Makes the default process group and returns the place of this process in the job.

    `backend` is "gloo" (the default), "nccl", or one for each device, as in "cpu:gloo,cuda:nccl". A default group that
    init_process_group has already made is used as it is, and `backend` is ignored.

    In a script that DeadPool did not start, this calls torch's init_process_group. The same loop then trains without
    protection, and a note on stderr says so.
    """
    if current.session is None or current.default_group is None:
        note("this script was not started by DeadPool, so it is not protected: start it with `deadpool run`")
        return UnprotectedRank() if dist.is_initialized() else UnprotectedRank.join(backend or "gloo")
    current.default_group.join(backend)
    return JobRank(current.session)


def _modules(objects: dict[str, object]) -> list[nn.Module]:
    return [each for each in objects.values() if isinstance(each, nn.Module)]
