"""Which files belong to a user's job: what lies in its working directory, beside its script or where its arguments
point to. Caches, temporary files and DeadPool's own run folder do not."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deadpool.config.environment import JOURNAL_VARIABLE

_NOT_KEPT = {"__pycache__", ".cache", ".triton", ".nv", ".git", ".local", ".config", "deadpool-runs"}
_LOCK = ".lock"  # libraries make and remove locks around what they read
_SYSTEM = ("/dev", "/proc", "/sys")
_OF_SYSTEM = ("/bin", "/boot", "/etc", "/lib", "/lib64", "/run", "/sbin", "/tmp", "/usr", "/var")


class JobFolders:
    def __init__(self, command: Sequence[str]) -> None:
        """`command` is what would follow `python`."""
        words = [part for word in command for part in (word, word.partition("=")[2]) if part]
        named = [os.path.realpath(word) for word in words if os.sep in word or Path(word).exists()]
        script = [os.path.realpath(Path(command[0]).parent)] if command and Path(command[0]).is_file() else []
        self._roots = [root for root in (os.path.realpath(Path.cwd()), *script, *named) if root != os.sep]
        journal = os.environ.get(JOURNAL_VARIABLE)
        self._excluded = [os.path.realpath(Path(journal).parent)] if journal else []
        self._caches = [os.path.realpath(os.environ[name]) for name in os.environ if _is_of_cache(name)]
        self._temporary = os.path.realpath(tempfile.gettempdir())

    def may_hold(self, path: str) -> bool:
        """Whether the path may be the job's, wherever it lies: a script may have it from a file of settings or from the
        environment. Temporary files, caches and the system's folders are nobody's."""
        if self.hold(path):
            return True
        elsewhere = (*self._excluded, *self._caches, self._temporary, *_OF_SYSTEM)
        parts = _NOT_KEPT.intersection(Path(path).parts)
        return not (path.startswith(_SYSTEM) or path.endswith(_LOCK) or parts or _is_in_any(path, elsewhere))

    def hold(self, path: str) -> bool:
        """`path` is absolute, without links in its folder."""
        roots = [root for root in self._roots if _is_within(path, root)]
        if _is_within(path, self._temporary):
            roots = [root for root in roots if root != self._temporary and _is_within(root, self._temporary)]
        if not roots or path.startswith(_SYSTEM) or path.endswith(_LOCK) or _is_in_any(path, self._excluded):
            return False
        return not _NOT_KEPT.intersection(Path(path).relative_to(max(roots, key=len)).parts)


def absolute(path: Any, folder: int = -1) -> str | None:
    """The path that a call of the system means, where `folder` is a descriptor; None: it is no path."""
    if isinstance(path, int):
        return None
    name = os.fsdecode(path)
    if folder is not None and folder >= 0 and not os.path.isabs(name):  # noqa: PTH117
        name = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)  # noqa: PTH115, PTH118
    whole = os.path.abspath(name)  # noqa: PTH100 (the last part may be a link, which is meant itself)
    return os.path.join(os.path.realpath(os.path.dirname(whole)), os.path.basename(whole))  # noqa: PTH118, PTH119, PTH120


def _is_of_cache(variable: str) -> bool:
    return bool(os.environ[variable]) and ("CACHE" in variable or variable in ("HF_HOME", "TORCH_HOME"))


def _is_in_any(path: str, roots: Sequence[str]) -> bool:
    return any(_is_within(path, each) for each in roots)


def _is_within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)
