"""The user's files in a process that joins a running job.

`JobFolders`: which files belong to a user's job: what lies in its working directory, beside its script or where its
arguments point to. Caches, temporary files and DeadPool's own run folder do not.

`KeptFiles`: In a process that joins a running job, files of the job that the script opens to overwrite are opened
elsewhere.

To refuse the call would hurt more: most preparations write a configuration again, with the same contents, and such a
script could never be rehearsed. What is written elsewhere is dropped. A file that is still open when the process is
the live rank, such as a log, is appended to from then on: its lines from before the loss stay, and new ones follow.

`KeptRemovals`: In a process that takes a rank of a running job, files of the job that its preparation removes stay
where they are.

The call returns as if it had removed them: an exception would end the process, and the next one would meet it again.
A folder that only seems to be gone may be made again. Who rehearses gets an exception instead (file_guard.py),
because nothing depends on a rehearsal. Python's own calls are kept, also those inside of shutil.rmtree; commands are
not run.
"""

from __future__ import annotations

import builtins
import contextlib
import glob
import io
import os
import shlex
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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


_REMOVING = ("remove", "unlink", "rmdir")
_COMMANDS = {"rm", "rmdir", "unlink", "mv", "truncate", "shred"}
_ENDS = {";", "&&", "||", "|", "&"}
_BEFORE = {"sudo", "env", "exec", "command", "nohup", "time"}


class KeptRemovals:
    def __init__(self, is_to_keep: Callable[[str], bool]) -> None:
        """`is_to_keep` is asked for each path, and names what is kept."""
        self._is_to_keep = is_to_keep
        self._originals: dict[str, Any] = {}
        self._gone: set[str] = set()  # as far as the script knows

    def install(self) -> None:
        for name in _REMOVING:
            self._replace(name, self._removing(getattr(os, name)))
        self._replace("mkdir", self._making(os.mkdir))

    def hand_over(self) -> None:
        """From here on the process is the live rank, and removes what it wants."""
        for name, original in self._originals.items():
            setattr(os, name, original)
        self._originals.clear()

    def _replace(self, name: str, call: Callable[..., None]) -> None:
        self._originals[name] = getattr(os, name)
        setattr(os, name, call)

    def _removing(self, original: Callable[..., None]) -> Callable[..., None]:
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            whole = _whole(path, dir_fd)
            if self._originals and whole is not None and self._is_to_keep(whole):
                self._gone.add(whole)
            else:
                original(path, dir_fd=dir_fd)

        return remove

    def _making(self, original: Callable[..., None]) -> Callable[..., None]:
        def make(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            whole = _whole(path, dir_fd)
            if whole not in self._gone or not self._originals:
                original(path, mode, dir_fd=dir_fd)
            self._gone.discard(whole or "")

        return make


def _whole(path: Any, folder: int | None) -> str | None:
    try:
        return absolute(path, -1 if folder is None else folder)
    except (OSError, TypeError):
        return None


def removed_by_command(command: str | bytes | Sequence[Any]) -> Iterator[str]:
    """The paths that a command line would remove, move away or truncate. What a shell works out by itself, such as
    variables and loops, is not understood."""
    words = _words(command)
    if len(words) > 2 and Path(words[0]).name in ("sh", "bash", "dash") and words[1] in ("-c", "-lc", "-ec"):
        words = _words(words[2])
    simple: list[str] = []
    for word in [*words, ";"]:
        if word not in _ENDS:
            simple.append(word)
            continue
        yield from _removed_by(simple)
        simple = []


def _words(command: Any) -> list[str]:
    if isinstance(command, (str, bytes)):
        try:
            lexer = shlex.shlex(os.fsdecode(command).replace("\n", " ; "), posix=True, punctuation_chars=";&|")
            lexer.whitespace_split = True
            return list(lexer)
        except ValueError:
            return []
    return [os.fsdecode(word) for word in command if isinstance(word, (str, bytes, os.PathLike))]


def _removed_by(words: list[str]) -> Iterator[str]:
    while words and (words[0] in _BEFORE or ("=" in words[0] and os.sep not in words[0])):
        words = words[1:]
    if not words or Path(words[0]).name not in _COMMANDS:
        return
    for word in words[1:]:
        if not word.startswith("-"):
            yield from glob.glob(str(Path(word).expanduser())) or [word]  # noqa: PTH207 (a word may be absolute)


def skip_commands(names_removed: Callable[[str | bytes | Sequence[Any]], bool]) -> Callable[[], None]:
    """os.system() and subprocess return without running what `names_removed` says. Returns how to undo it."""
    system, popen = os.system, subprocess.Popen.__init__

    def quiet_system(command: Any) -> int:
        return 0 if names_removed(command) else system(command)

    def quiet_popen(self: Any, args: Any, *more: Any, **options: Any) -> None:
        if names_removed(args):
            args, options["shell"] = ["true"], False
            options.pop("executable", None)
        popen(self, args, *more, **options)

    os.system, subprocess.Popen.__init__ = quiet_system, quiet_popen  # type: ignore[assignment, method-assign]

    def undo() -> None:
        os.system, subprocess.Popen.__init__ = system, popen  # type: ignore[method-assign]

    return undo
