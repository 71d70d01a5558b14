"""Which files of compiled code a live rank uses: those that torch.compile and Triton read or write in its first steps.

Python tells of such calls by audit events: a file is opened, renamed to its name, or imported as a module. After
WATCHED_STEPS steps the hook returns at once. What is compiled later, in an evaluation for example, is not seen, and a
newcomer compiles it when it gets there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deadpool.config.environment import CODE_FOLDERS_VARIABLE
from deadpool.host.code_folders import name_of, path_of
from deadpool.protocol.messages import Seat, UsesCode

if TYPE_CHECKING:
    from deadpool.trainer.process.session import Session

WATCHED_STEPS = 16


class CodeWatch:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._folders = tuple(filter(None, os.environ.get(CODE_FOLDERS_VARIABLE, "").split(os.pathsep)))
        self._pid = os.getpid()
        self._seen: set[str] = set()
        self._told: set[str] = set()
        self._steps = 0
        self._is_active = False

    def begin(self) -> None:
        """The script is about to begin. A rehearsal compiles for itself, and its node keeps that."""
        if self._folders and isinstance(self._session.playing, Seat):
            self._is_active = True
            sys.addaudithook(self._on_event)

    def step_completed(self) -> None:
        if not self._is_active:
            return
        self._steps += 1
        self._is_active = self._steps < WATCHED_STEPS
        self._tell()

    def _tell(self) -> None:
        folders = [Path(folder) for folder in self._folders]
        fresh = sorted(name for name in self._seen - self._told if path_of(name, folders).is_file())
        if fresh:
            self._told.update(fresh)
            self._session.send(UsesCode(names=tuple(fresh)))

    def _on_event(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._is_active or event not in _PATHS:
            return
        path = args[_PATHS[event]]
        if isinstance(path, str) and path.startswith(self._folders) and os.getpid() == self._pid:
            name = name_of(path, self._folders)
            if name is not None:
                self._seen.add(name)


_PATHS = {"open": 0, "os.rename": 1, "import": 1, "ctypes.dlopen": 0}
"""Which argument of an audit event is the path."""
