"""`deadpool.join` and `pool.protect`: what a training script calls instead of init_process_group, and for its loop."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn

from deadpool.errors import ConfigError
from deadpool.notes import note
from deadpool.snapshot.state import ProtectedState
from deadpool.trainer import current
from deadpool.trainer.adapters import adapters_for
from deadpool.trainer.adapters.ddp import ddp_modules
from deadpool.trainer.adapters.ddp_state import ddp_states
from deadpool.trainer.adapters.wrappers import require_wrappers
from deadpool.trainer.boundary_groups import BoundaryGroups
from deadpool.trainer.device import require_current_device
from deadpool.trainer.job import Job
from deadpool.trainer.job_journal import JobJournal
from deadpool.trainer.replication_claims import Claims, apply_claims
from deadpool.trainer.session import Session
from deadpool.trainer.unprotected import UnprotectedPool


class Pool:
    """This process's place in a protected job."""

    def __init__(self, session: Session) -> None:
        assert session.settings is not None
        self._session = session
        self._layout = session.settings.layout
        self.rank = session.rank
        self.world_size = self._layout.world_size
        self.local_rank = self._layout.local_rank(self.rank)

    def protect(self, *, replicated: Claims | None = None, **objects: object) -> Job:
        """Everything whose state the loop changes: model=, optimizer=, scheduler=, data=, ... under any names.

        What other ranks hold identically, and need not be sent, is derived. `replicated` overrides that per object: a
        process group on all of whose ranks it is identical, or None for an object that is to be sent in any case.
        """
        if current.job is not None:
            raise ConfigError("protect() was called twice: pass all objects to one call")
        modules = _modules(objects)
        require_current_device(param.device for module in modules for param in module.parameters())
        require_wrappers(modules)
        adapters = adapters_for(modules)
        derived = {key: ranks for adapter in adapters for key, ranks in adapter.replicas().items()}
        journal = JobJournal(self._session)
        assert current.default_group is not None
        state = ProtectedState(
            objects,
            replicas=apply_claims(derived, objects, replicated or {}, self.rank),
            rank=self.rank,
            node_of=self._layout.position_of,
            companions={
                "process groups": BoundaryGroups(self._session, current.default_group),
                "journal": journal,
                **ddp_states(ddp_modules(modules), objects.values()),
            },
        )
        current.job = Job(self._session, state, adapters, journal)
        return current.job


def join(backend: str | None = None) -> Pool | UnprotectedPool:
    """Makes the default process group of this rank and gives its place in the job.

    Where there is a default group already, by init_process_group, it stays as it is. In a script that was not started
    by DeadPool this is init_process_group, by default with gloo, and nothing is protected.
    """
    if current.session is None or current.default_group is None:
        note("not started by `deadpool run`: this job is not protected")
        return UnprotectedPool() if dist.is_initialized() else UnprotectedPool.join(backend or "gloo")
    current.default_group.join(backend)
    return Pool(current.session)


def _modules(objects: dict[str, object]) -> list[nn.Module]:
    return [each for each in objects.values() if isinstance(each, nn.Module)]
