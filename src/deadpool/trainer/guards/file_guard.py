"""Names what a script's preparation does to files that were there before, because it runs again while the job does.

    first process       what it removes is named, unless the script has asked for deadpool.first_start
    newcomer            what it removes is named and kept (kept_files.py); what it replaces or truncates is named
    restart             what it removes, replaces or truncates is named
    rehearsal           all of that is refused with a PermissionError: a rehearsal never destroys a user's file

Files that a rehearsal or a newcomer opens to overwrite are named, kept and opened elsewhere (kept_files.py). Those that
it reads before its loop are named if they were written after the loop of the rank's first process had begun: that one
began without them, or with others.

In processes that join the job, removals count wherever the path lies, and commands are looked at too: `rm`, `mv`,
`truncate` that the script starts by os.system() or subprocess. What such a command would remove in a newcomer stays,
because the command is not run.

Python tells of such calls by audit events, whichever module makes them. A hook cannot be removed; where nothing is
watched it returns at once. Calls of C and C++ code (torch.save writes its files in C++) are not seen.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from deadpool.protocol.messages import Rehearse
from deadpool.trainer import first_start
from deadpool.trainer.guards.guard import Rule
from deadpool.trainer.guards.kept_files import (
    JobFolders,
    KeptFiles,
    KeptRemovals,
    absolute,
    removed_by_command,
    skip_commands,
)
from deadpool.trainer.process import forked_child

if TYPE_CHECKING:
    from deadpool.trainer.process.session import Session

REMOVE, REPLACE, OVERWRITE, READ = "remove", "replace", "overwrite", "read"
_Touched = tuple[str, Any, int]  # what is done, the path, a descriptor of its folder or -1


class FileGuard:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._folders: JobFolders | None = None
        self._made: set[str] = set()  # by this process
        self._busy = threading.local()
        self._active = mmap.mmap(-1, 1)  # shared with processes that the script forks: what is over here is over there
        self._later: list[str] = []  # what the first process removes: a script without a loop is told nothing
        self._kept = KeptFiles(self._overwrites)
        self._kept_removals = KeptRemovals(self._removes)
        self._undo_commands: Callable[[], None] = lambda: None
        self._joins = self._is_before_loop = False

    def begin(self, command: Sequence[str]) -> None:
        """The script's preparation begins."""
        self._folders = JobFolders(command)
        self._active[0] = 1
        sys.addaudithook(self._on_event)
        self._joins = self._is_before_loop = first_start.joins_job(self._session.playing)
        if self._joins:
            self._kept.install()
            self._undo_commands = skip_commands(self._runs_removal)
        if self._joins and not self._rehearses:
            self._kept_removals.install()

    def enter_dry_steps(self) -> None:
        """What the script reads from here on, its first process has read in its loop too."""
        self._is_before_loop = False

    def end(self) -> None:
        """The loop begins, or this process has become a live rank in it."""
        self._active[0] = 0
        self._kept.hand_over()
        self._kept_removals.hand_over()
        self._undo_commands()
        self._undo_commands = lambda: None
        for found in self._later:
            self._report(REMOVE, found)
        self._later.clear()

    @property
    def _rehearses(self) -> bool:
        return isinstance(self._session.role, Rehearse)

    def _on_event(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._active[0] or event not in _READERS or getattr(self._busy, "now", False):
            return
        self._busy.now = True
        try:
            for what, path, folder in _READERS[event](*args):
                self._touch(what, _found_path(path, folder), event)
        finally:
            self._busy.now = False

    def _touch(self, what: str, path: str | None, event: str) -> None:
        if path is None or self._is_own(path):
            return
        if what == _MAKE:
            self._made |= set() if os.path.lexists(path) else {path}
        elif what == READ:
            self._look_at_read(path)
        elif (
            self._is_to_keep(what, path)
            or self._is_removed_elsewhere(what, path)
            or (event == _RMTREE and first_start.is_first() and self._is_of_job(path))
        ):
            self._find(what, path, refusing=event != _RMTREE)  # where it ignores errors, the script goes on

    def _look_at_read(self, path: str) -> None:
        recording = self._session.recordings.get(self._session.rank) if self._is_before_loop else None
        began = recording.loop_began if recording is not None else 0.0
        if began and self._is_of_job(path) and _was_written_after(path, began):
            found = f"Before its loop a process that takes a rank reads {path}, written after the job's loop had begun."
            self._report(READ, found, Rule.FILES_FROM_LOOP)

    def _overwrites(self, path: str) -> bool:
        """Whether a file that the script opens to overwrite is to be kept. It is named then, unless it is empty: the
        live rank may have opened a log and not have written yet, and this process would write over its lines later."""
        if not self._active[0] or self._is_own(path) or not self._is_of_job(path) or not os.path.isfile(path):  # noqa: PTH113
            return False
        if self._is_to_keep(OVERWRITE, path):
            who = "A rehearsal" if self._rehearses else "A process that takes a rank"
            self._report(OVERWRITE, f"{who} was kept from overwriting {path}, which the job has.")
        return True

    def _removes(self, path: str) -> bool:
        """Whether a file that a newcomer removes is to be kept. It is named then."""
        if not self._active[0] or self._is_own(path) or not os.path.lexists(path) or not self._may_be_of_job(path):
            return False
        self._report(REMOVE, f"A process that takes a rank was kept from removing {path}, which the job has.")
        return True

    def _runs_removal(self, command: Any) -> bool:
        """Whether a command that this process starts would remove a file of the job. It is named then."""
        if not self._active[0]:
            return False
        paths = [path for each in removed_by_command(command) if (path := _found_path(each, -1)) is not None]
        kept = [path for path in paths if not self._is_own(path) and os.path.lexists(path)]
        kept = [path for path in kept if self._may_be_of_job(path)]
        if kept and self._rehearses:
            self._find(REMOVE, kept[0], refusing=True)
        elif kept:
            self._report(REMOVE, f"A process that takes a rank was kept from a command that removes {kept[0]}.")
        return bool(kept)

    def _is_removed_elsewhere(self, what: str, path: str) -> bool:
        """Tells whether a file of the job is removed by a process that joins it: a library of the first one may remove
        what it wants.
        """
        return what == REMOVE and self._joins and os.path.lexists(path) and self._may_be_of_job(path)

    def _may_be_of_job(self, path: str) -> bool:
        return self._folders is not None and self._folders.may_hold(path)

    def _is_to_keep(self, what: str, path: str) -> bool:
        if not os.path.lexists(path) or not self._is_of_job(path):
            return False
        return what != OVERWRITE or (os.path.isfile(path) and os.path.getsize(path) > 0)  # noqa: PTH113, PTH202

    def _is_of_job(self, path: str) -> bool:
        return self._folders is not None and self._folders.hold(path)

    def _is_own(self, path: str) -> bool:
        return any(path == made or path.startswith(made + os.sep) for made in self._made)

    def _find(self, what: str, path: str, *, refusing: bool) -> None:
        if self._rehearses:
            text = f"A rehearsal was kept from what the script's preparation does: to {what} {path}, which the job has."
            self._report(what, text)
            if refusing:
                raise PermissionError(errno.EACCES, f"{text} {Rule.FILES_BEFORE_LOOP.remedy}", path)
        elif not first_start.is_first():
            self._report(what, f"A process that takes a rank runs the script's preparation again, to {what} {path}.")
        elif what == REMOVE and not first_start.was_asked():
            self._later.append(f"Before its loop the script may remove {path}, and a process that takes this rank too.")

    def _report(self, what: str, found: str, rule: Rule = Rule.FILES_BEFORE_LOOP) -> None:
        if forked_child.is_child():
            return
        self._session.findings.report(rule, found, kind=what)


def _was_written_after(path: str, began: float) -> bool:
    """`path` may be a link, which is as good as the file."""
    with contextlib.suppress(OSError):
        file = os.stat(path)  # noqa: PTH116
        return stat.S_ISREG(file.st_mode) and max(file.st_mtime, os.lstat(path).st_mtime) > began
    return False


def _found_path(path: Any, folder: int) -> str | None:
    with contextlib.suppress(OSError):
        return absolute(path, folder)
    return None


_MAKE = "make"
_RMTREE = "shutil.rmtree"


def _removal(path: Any, folder: int = -1) -> Iterator[_Touched]:
    yield REMOVE, path, -1 if folder is None else folder


def _rename(source: Any, target: Any, source_folder: int = -1, target_folder: int = -1) -> Iterator[_Touched]:
    yield REPLACE, source, source_folder
    yield REPLACE, target, target_folder
    yield _MAKE, target, target_folder


def _truncation(path: Any, length: int) -> Iterator[_Touched]:
    yield OVERWRITE, path, -1


def _opening(path: Any, mode: str | None, flags: int) -> Iterator[_Touched]:
    if path is None:
        return
    if flags & os.O_TRUNC:
        yield OVERWRITE, path, -1
    elif flags & os.O_ACCMODE != os.O_WRONLY and not flags & os.O_APPEND:
        yield READ, path, -1
    if flags & os.O_CREAT:
        yield _MAKE, path, -1


def _making(path: Any, mode: int, folder: int = -1) -> Iterator[_Touched]:
    yield _MAKE, path, folder


def _linking(source: Any, target: Any, *folders: int) -> Iterator[_Touched]:
    yield _MAKE, target, folders[-1] if folders else -1


_READERS: dict[str, Callable[..., Iterator[_Touched]]] = {
    "os.remove": _removal,
    "os.rmdir": _removal,
    _RMTREE: _removal,
    "os.rename": _rename,
    "os.truncate": _truncation,
    "open": _opening,
    "os.mkdir": _making,
    "os.link": _linking,
    "os.symlink": _linking,
}
"""What a call does to which paths, by audit event."""
