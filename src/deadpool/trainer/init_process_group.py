"""The default process group of this process, whoever asks for it: deadpool.join() or torch's own init_process_group.

Scripts, and frameworks that they use, make it by init_process_group. Inside a trainer that means the same as join: the
group is one that can be aborted and rebuilt, and in a rehearsal a fake one that talks to nobody. So the function is
replaced before the script's first line, wherever a module has it by then.
"""

from __future__ import annotations

import functools
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from deadpool.backend import world
from deadpool.errors import ConfigError
from deadpool.protocol.messages import Connect, Seat
from deadpool.trainer.device import use_device
from deadpool.trainer.session import Session

_NAME = "init_process_group"


class DefaultGroup:
    """Main thread only."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._stock: Any = getattr(dist, _NAME)
        self.made_count = 0  # in this job, as of the boundary that this process stands at: all ranks count alike
        self._joined: str | None = None  # backend of the group that join() made: init_process_group may follow, once
        self._wishes: dict[str, Any] | None = None  # for the group that is being made
        self._ours: Any = None

    def install(self) -> None:
        """Also in modules that have imported the function by name, such as torch's own meshes."""

        @functools.wraps(self._stock)
        def ours(*arguments: Any, **keywords: Any) -> None:
            self._init_process_group(*arguments, **keywords)

        self._ours = ours
        _replace(self._stock, ours)

    def uninstall(self) -> None:
        _replace(self._ours, self._stock)

    def join(self, backend: str | None) -> None:
        if not dist.is_initialized():
            self._joined = _plain(backend or "gloo")
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
        """Where and how ranks meet is ours to say, so `init_method` and `store` are not used. `device_id` becomes the
        current device of this thread, and no communicator connects before it is needed."""
        if self._wishes is not None:  # from within: this is the call that makes it
            stock = {"timeout": timeout, "world_size": world_size, "rank": rank, "store": store}
            self._stock(backend, **{**stock, **self._wishes})
            return
        self._check_place(rank, world_size)
        if device_id is not None:
            use_device(device_id)
        if self._joined is not None and dist.is_initialized():
            _check_joined(self._joined, backend, timeout, pg_options)
            self._joined = None
            return
        if dist.is_initialized():
            raise ValueError("trying to initialize the default process group twice!")  # as torch does
        backend = _plain(backend)
        wishes = {"timeout": timeout, "pg_options": pg_options if "nccl" in backend else None}
        self._make(backend, {name: value for name, value in wishes.items() if value is not None})

    def _check_place(self, rank: int, world_size: int) -> None:
        assert self._session.settings is not None
        ours = {"rank": self._session.rank, "world_size": self._session.settings.layout.world_size}
        for name, given in (("rank", rank), ("world_size", world_size)):
            if given not in (-1, ours[name]):
                raise ConfigError(
                    f"init_process_group({name}={given}) cannot be used: in this job it is {ours[name]}; leave it out, "
                    f"or take it from {name.upper()}"
                )

    def _make(self, backend: str, wishes: dict[str, Any]) -> None:
        session, is_live = self._session, self._is_live()
        assert session.settings is not None
        self._wishes = wishes
        try:
            session.groups.init(
                backend=backend,
                store=self._store() if is_live else dist.HashStore(),
                rank=session.rank,
                world_size=session.settings.layout.world_size,
                detached=not is_live,
            )
        finally:
            self._wishes = None
        self.made_count += 1

    def _is_live(self) -> bool:
        """The first group of a rehearsal is fake. A later one is what the last one has become."""
        playing = self._session.playing
        begins_live = isinstance(playing, Seat) and playing.resume is None
        return begins_live or (self.made_count > 0 and not self._session.groups.detached)

    def _store(self) -> dist.Store:
        """A group that is made after another one was destroyed bears the same name, so it meets elsewhere."""
        session = self._session
        connect = session.expect(Connect, session.core.generation)  # heard before the script began
        part = f"again-{self.made_count}" if self.made_count else ""
        return session.rendezvous(connect.store, connect.generation, part)


def _replace(old: Any, new: Any) -> None:
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(_NAME) is old:
            setattr(module, _NAME, new)


def _check_joined(joined: str, backend: str | None, timeout: timedelta | None, options: Any) -> None:
    """ConfigError: the group that join() has made is another one."""
    there = world.joined_groups()[0].timeout
    differs = {
        f"backend={backend!r}": backend is not None and _plain(backend) != joined,
        f"timeout={timeout}": timeout not in (None, there),
        f"pg_options={options!r}": options is not None,
    }
    for asked, is_other in differs.items():
        if is_other:
            raise ConfigError(
                f"init_process_group({asked}) cannot be used: join() has made the default group, with {joined} and a "
                f"timeout of {there}; call init_process_group first, and join() takes what it made"
            )


def _plain(backend: str | None) -> str:
    """As torch would choose where nothing is said, and whatever way it is written."""
    if backend is None:
        return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    return ",".join(sorted(part.strip() for part in str(backend).lower().split(",")))
