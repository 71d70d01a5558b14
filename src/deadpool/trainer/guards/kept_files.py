"""In a process that joins a running job, files of the job that the script opens to overwrite are opened elsewhere.

To refuse the call would hurt more: most preparations write a configuration again, with the same contents, and such a
script could never be rehearsed. What is written elsewhere is dropped. A file that is still open when the process is the
live rank, such as a log, is appended to from then on: its lines from before the loss stay, and new ones follow.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deadpool.trainer.guards.job_folders import absolute


@dataclass(frozen=True, slots=True)
class _OpenedElsewhere:
    file: weakref.ref[Any]
    path: str


class KeptFiles:
    def __init__(self, is_to_keep: Callable[[str], bool]) -> None:
        self._is_to_keep = is_to_keep
        self._original: Any = builtins.open
        self._is_installed = False
        self._elsewhere: list[_OpenedElsewhere] = []

    def install(self) -> None:
        self._original, self._is_installed = builtins.open, True
        builtins.open = io.open = self._open  # type: ignore[assignment]

    def hand_over(self) -> None:
        """From here on the process is the live rank, and writes into the files themselves."""
        if not self._is_installed:
            return
        builtins.open = io.open = self._original
        self._is_installed = False
        for each in self._elsewhere:
            file = each.file()
            if file is not None and not file.closed:
                _append_to(file, each.path)
        self._elsewhere.clear()

    def _open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """Libraries may keep it (logging's handlers do), and call it long after the files were handed over."""
        overwrites = self._is_installed and "w" in mode and isinstance(file, (str, bytes, os.PathLike))
        path = absolute(file) if overwrites else None
        if path is None or not self._is_to_keep(path):
            return self._original(file, mode, *args, **kwargs)
        descriptor, name = tempfile.mkstemp(prefix="deadpool-kept-")
        os.close(descriptor)
        opened = self._original(name, mode, *args, **kwargs)
        os.unlink(name)  # noqa: PTH108 (it lives as long as it is open)
        self._elsewhere.append(_OpenedElsewhere(weakref.ref(opened), path))
        return opened


def _append_to(file: Any, path: str) -> None:
    """What the rehearsal has written is flushed first, and dropped with the other file."""
    with contextlib.suppress(OSError, ValueError):
        file.flush()
        access = os.O_RDWR if file.readable() else os.O_WRONLY
        target = os.open(path, access | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(target, file.fileno(), inheritable=False)
        os.close(target)
