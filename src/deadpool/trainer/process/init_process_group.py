"""Makes the default process group of this process, for deadpool.join() and for torch's own init_process_group.

Scripts and frameworks call init_process_group. In a trainer it does the same as join: it makes a group that can be
aborted and rebuilt, and in a rehearsal a fake one that communicates with no peer. So the function is replaced before
the script's first line, in every module that has imported it by then.
"""

from __future__ import annotations

import functools
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from deadpool.backend.backend_factory import refuse_unknown
from deadpool.errors import ConfigError
from deadpool.protocol.messages import Connect, Seat
from deadpool.trainer.process import torch_check
from deadpool.trainer.process.environment import use_device
from deadpool.trainer.process.session import Session

_NAME = "init_process_group"


class DefaultGroup:
    """The default group of this process. Main thread only."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._original: Any = getattr(dist, _NAME)
        self.made_count = 0  # in this job, up to the boundary that this process stands at; the same on all ranks
        self._joined: str | None = None  # the backend of the group that join() made: one init_process_group may follow
        self._options: dict[str, Any] | None = None  # the user's options for the group that is being made
        self._replacement: Any = None

    def install(self) -> None:
        """Replaces the function also in modules that have imported it by name, such as torch's device meshes."""

        @functools.wraps(self._original)
        def replacement(*arguments: Any, **keywords: Any) -> None:
            self._init_process_group(*arguments, **keywords)

        self._replacement = replacement
        _replace(self._original, replacement)

    def uninstall(self) -> None:
        _replace(self._replacement, self._original)

    def join(self, backend: str | None) -> None:
        if not dist.is_initialized():
            self._joined = _normalized(backend or "gloo")
            self._make(self._joined, {})

    def _init_process_group(
        self,
        backend: str | None = None,
        init_method: str | None = None,
        timeout: timedelta | None = None,
        world_size: int = -1,
        rank: int = -1,
        store: dist.Store | None = None,
        group_name: str = "",
        pg_options: Any = None,
        device_id: torch.device | int | None = None,
        **more: Any,
    ) -> None:
        """`init_method` and `store` are ignored, because DeadPool decides where ranks meet. `device_id` becomes the
        current device of this thread, and no communicator connects before its first use."""
        if self._options is not None:  # the call of session.groups.init() within _make()
            given = {"timeout": timeout, "world_size": world_size, "rank": rank, "store": store}
            self._original(backend, **{**given, **self._options})
            return
        refuse_unknown(more)
        self._check_place(rank, world_size)
        if device_id is not None and (device := use_device(device_id)) is not None:
            self._session.groups.use_device(device)
        if self._joined is not None and dist.is_initialized():
            _check_joined(self._joined, self._session.groups.default_timeout, backend, timeout, pg_options)
            self._joined = None
            return
        if dist.is_initialized():
            raise ValueError("trying to initialize the default process group twice!")  # as torch does
        backend = _normalized(backend)
        options = {"timeout": timeout, "pg_options": pg_options if "nccl" in backend else None}
        self._make(backend, {name: value for name, value in options.items() if value is not None})

    def _check_place(self, rank: int, world_size: int) -> None:
        assert self._session.settings is not None
        actual = {"rank": self._session.rank, "world_size": self._session.settings.layout.world_size}
        for name, given in (("rank", rank), ("world_size", world_size)):
            if given not in (-1, actual[name]):
                raise ConfigError(
                    f"init_process_group({name}={given}) cannot be used: in this job {name} is {actual[name]}; leave "
                    f"the argument out, or take it from the environment variable {name.upper()}"
                )

    def _make(self, backend: str, options: dict[str, Any]) -> None:
        session, is_live = self._session, self.is_live()
        assert session.settings is not None
        self._options = options
        try:
            session.groups.init(
                backend=backend,
                store=self._compared_store() if is_live else dist.HashStore(),
                rank=session.rank,
                world_size=session.settings.layout.world_size,
                detached=not is_live,
            )
        finally:
            self._options = None
        self.made_count += 1

    def is_live(self) -> bool:
        """Whether a default group that is made now has peers. The first one of a rehearsal is fake; a later one is fake
        only while this process is still detached."""
        playing = self._session.playing
        begins_live = isinstance(playing, Seat) and (playing.resume is None or torch_check.is_plain())
        return begins_live or (self.made_count > 0 and not self._session.groups.detached)

    def _compared_store(self) -> dist.Store:
        store = self._store()
        if self.made_count == 0:
            torch_check.compare_with_rank_0(self._session.groups, store, self._session.rank)
        return store

    def _store(self) -> dist.Store:
        """A default group that is made after another one was destroyed has the same name, so its ranks meet in another
        part of the store."""
        session = self._session
        connect = session.expect(Connect, session.core.generation)  # it came before the script began
        part = f"again-{self.made_count}" if self.made_count else ""
        return session.rendezvous(connect.store, connect.generation, part)


def _replace(old: Any, new: Any) -> None:
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(_NAME) is old:
            setattr(module, _NAME, new)


def _check_joined(joined: str, actual: timedelta, backend: str | None, timeout: timedelta | None, options: Any) -> None:
    """ConfigError: init_process_group asks for another group than the one that join() has made."""
    differs = {
        f"backend={backend!r}": backend is not None and _normalized(backend) != joined,
        f"timeout={timeout}": timeout not in (None, actual),
        f"pg_options={options!r}": options is not None,
    }
    for asked, is_other in differs.items():
        if is_other:
            raise ConfigError(
                f"init_process_group({asked}) cannot be used: join() has made the default group, with {joined} and a "
                f"timeout of {actual}; call init_process_group first, and then join(), which uses that group"
            )


def _normalized(backend: str | None) -> str:
    """The backend in lower case and in a fixed order of devices; the one that torch would choose if none is given."""
    if backend is None:
        return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    return ",".join(sorted(part.strip() for part in str(backend).lower().split(",")))
