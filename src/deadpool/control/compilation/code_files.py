"""A node's files of compiled code: which there are, chunks of them, and files that come from other nodes.

A file that comes is written beside its place, checked against its digest, and gets its name only where nothing bears
it: what this node has compiled itself, or another process writes, stays. A node that dies meanwhile leaves a hidden
file that nobody reads.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from deadpool.errors import DeadPoolError
from deadpool.host.code_folders import is_name, path_of
from deadpool.host.private_files import make_private_folder, owner_only_opener
from deadpool.protocol.messages import CHUNK_BYTES, CodeFile

_DIGEST_BYTES = 16
FILES_AT_MOST = 10_000
_MACHINE_CODE = ".so"
_FREE_TIMES = 2
"""The disk has to have so many times as much room as what comes."""


_TELLING = frozenset({"model name", "flags", "Features", "CPU implementer", "CPU part"})
"""Keys of /proc/cpuinfo, of x86-64 and of ARM."""


class CodeLost(DeadPoolError):
    """A file that comes from another node cannot be had."""


def machine_kind(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Names the kind of processors: machine code of a node may have instructions that another kind lacks."""
    known: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in _TELLING:
                known.setdefault(key.strip(), value.strip())
    told = repr((platform.machine(), sorted(known.items())))
    return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()


class CodeFiles:
    """One thread at a time."""

    def __init__(self, folders: Sequence[Path], machine: str, limit_bytes: int = 0) -> None:
        self._folders, self.machine, self.limit_bytes = tuple(folders), machine, limit_bytes
        self._taken_bytes = 0
        self._listed: frozenset[str] = frozenset()
        self._known: dict[str, tuple[int, int, CodeFile]] = {}  # size, time of change: each file is hashed once

    # --- what there is ------------------------------------------------------------------------------------------------

    def index(self, names: Sequence[str]) -> tuple[bytes, tuple[CodeFile, ...]]:
        """The files that are there, and a digest of the list."""
        found = tuple(file for name in sorted(names)[:FILES_AT_MOST] if (file := self._describe(name)) is not None)
        self._listed |= {file.name for file in found}
        together = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for file in found:
            together.update(f"{file.name} {file.size} ".encode() + file.digest)
        return together.digest(), found

    def _describe(self, name: str) -> CodeFile | None:
        try:
            with open(path_of(name, self._folders), "rb", opener=_without_links) as file:
                facts = os.fstat(file.fileno())
                if not stat.S_ISREG(facts.st_mode) or not facts.st_size:
                    return None
                size, changed, known = self._known.get(name, (0, 0, None))
                if known is None or (size, changed) != (facts.st_size, facts.st_mtime_ns):
                    known = CodeFile(name=name, size=facts.st_size, digest=_digest_of(file))
                    self._known[name] = (facts.st_size, facts.st_mtime_ns, known)
                return known
        except OSError:
            return None

    def read(self, name: str, offset: int) -> bytes:
        """A chunk of a file that was listed; empty: it is gone, or was never offered."""
        if name not in self._listed:
            return b""
        try:
            with open(path_of(name, self._folders), "rb", opener=_without_links) as file:
                file.seek(offset)
                return file.read(CHUNK_BYTES)
        except OSError:
            return b""

    # --- what comes ---------------------------------------------------------------------------------------------------

    def find_missing(self, files: Sequence[CodeFile], machine: str) -> tuple[tuple[CodeFile, ...], str]:
        """What this node lacks and takes, and why it does not take the rest."""
        wanted = [file for file in files if is_name(file.name) and file.size > 0]
        wanted = [file for file in wanted if not os.path.lexists(path_of(file.name, self._folders))]
        if machine != self.machine:  # it is compiled here from the sources that come
            wanted = [file for file in wanted if not file.name.endswith(_MACHINE_CODE)]
        taken: list[CodeFile] = []
        left_bytes = self.limit_bytes - self._taken_bytes
        for file in wanted:
            if file.size <= left_bytes:
                taken.append(file)
                left_bytes -= file.size
        refused = f"{len(wanted) - len(taken)} files are over --compiled-mb" if len(taken) < len(wanted) else ""
        problem = self._problem(taken)
        if problem:
            return (), problem
        self._taken_bytes = self.limit_bytes - left_bytes
        return tuple(taken), refused

    def _problem(self, files: Sequence[CodeFile]) -> str:
        """Why they cannot be written; empty: they can."""
        size = sum(file.size for file in files)
        for folder in sorted({self._folders[int(file.name[0])] for file in files}):
            try:
                make_private_folder(folder)
                if folder.stat().st_uid != os.geteuid():
                    return f"{folder} belongs to another user"
                if shutil.disk_usage(folder).free < _FREE_TIMES * size:
                    return f"the disk of {folder} is nearly full"
            except OSError as error:
                return f"{folder} cannot be used: {error}"
        return ""

    def write(self, file: CodeFile, offset: int, data: bytes) -> int:
        """Returns how many bytes are there. CodeLost: the file is given up."""
        path = path_of(file.name, self._folders)
        beside = path.with_name(f".{path.name[:100]}.deadpool-{os.getpid()}")
        try:
            if not data or offset + len(data) > file.size:
                raise CodeLost(f"{file.name} is not there any more, or another one")
            make_private_folder(path.parent)
            with open(beside, "r+b" if offset else "wb", opener=_private_without_links) as out:
                out.seek(offset)
                out.write(data)
            if offset + len(data) == file.size:
                _complete(beside, path, file)
            return offset + len(data)
        except (OSError, CodeLost) as error:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise CodeLost(str(error)) from error


def _complete(beside: Path, path: Path, file: CodeFile) -> None:
    with open(beside, "rb") as written:
        if _digest_of(written) != file.digest:
            raise CodeLost(f"{file.name} is not as it was listed")
    try:
        os.link(beside, path)  # unlike a rename it replaces nothing
    except FileExistsError:
        pass  # a process of this node has compiled it meanwhile
    except OSError:  # a file system without links
        if not os.path.lexists(path):
            beside.replace(path)
            return
    beside.unlink()


def _digest_of(file: IO[bytes]) -> bytes:
    return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_DIGEST_BYTES)).digest()  # type: ignore[arg-type]


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


def _private_without_links(path: str, flags: int) -> int:
    return owner_only_opener(path, flags | os.O_NOFOLLOW)
