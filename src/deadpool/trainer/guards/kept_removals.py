"""In a process that takes a rank of a running job, files of the job that its preparation removes stay where they are.

The call returns as if it had removed them: an exception would end the process, and the next one would meet it again. A
folder that only seems to be gone may be made again. Who rehearses gets an exception instead (file_guard.py), because
nothing depends on a rehearsal. Python's own calls are kept, also those inside of shutil.rmtree; commands are not run.
"""

from __future__ import annotations

import glob
import os
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from deadpool.trainer.guards.job_folders import absolute

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
