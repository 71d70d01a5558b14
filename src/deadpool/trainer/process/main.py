"""A trainer process from its first rank to the end of the user's script.

`run_program` runs the user's program in this process as a fresh interpreter would: `python script.py` or `python -m
name`.

The script finds the same as there: `__main__` with all its attributes, sys.argv and sys.path, and a `__main__` that
still exists when exit handlers run. multiprocessing and pickle look all of this up, also in processes that they
spawn.

`main` runs a user's script as a trainer: waits for a rank, sets the environment, runs the script once.

A script leaves things in its process that depend on the rank it ran as: singletons of packages, threads, handlers.
So a process that has begun the script never becomes another rank and never begins it again: its agent ends it and
starts a fresh one.

A spare begins the script only when the rank that it rehearses has reached its protected loop. A script that never
gets there is unprotected, and a rehearsal would only repeat its side effects.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import runpy
import sys
import traceback
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path

import torch
import torch.distributed
import torch.distributed.fsdp
import torch.distributed.optim
import torch.distributed.pipelining
import torch.distributed.tensor

from deadpool.errors import Inexact, Unsuitable
from deadpool.host.notes import note
from deadpool.protocol.identity import Address
from deadpool.protocol.messages import Connect, Connected, Exits, Failed, Rehearse, Seat
from deadpool.trainer import current, first_start
from deadpool.trainer.adapters.pipeline import watch_schedules
from deadpool.trainer.adapters.wrappers import watch_wrappers
from deadpool.trainer.current import CODE_RESTART, Restart, Superseded
from deadpool.trainer.process import forked_child, plain_start, torch_check
from deadpool.trainer.process.environment import set_environment
from deadpool.trainer.process.forked_child import end_children_with_this_process
from deadpool.trainer.process.init_process_group import DefaultGroup
from deadpool.trainer.process.session import Session
from deadpool.trainer.protect import join as _  # noqa: F401 (imported here so that a forked trainer need not)
from deadpool.trainer.recovery.collective_recording import is_of_same_torch

MODULE_FLAG = "-m"


def run_program(command: list[str]) -> None:
    """`command` is what would follow `python`: a path, or `-m` and a name, and then the program's own arguments."""
    sys.orig_argv = [sys.executable, "-u", *command]  # unbuffered, as torchrun runs a script
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = main
    if command[0] == MODULE_FLAG:
        _run_module(command[1], command[2:])
    else:
        _run_path(main, command[0], command[1:])


def _run_module(name: str, arguments: list[str]) -> None:
    """Runs the module in the namespace of `__main__`, with its `__spec__`. A name that cannot be found ends in a
    SystemExit that says so, as with `python -m`."""
    sys.argv = [MODULE_FLAG, *arguments]
    sys.path[0] = str(Path.cwd())
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def _run_path(main: types.ModuleType, script: str, arguments: list[str]) -> None:
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    path = os.path.abspath(script)  # noqa: PTH100 (like python, without resolving links in __file__)
    if Path(path).is_dir() or path.endswith((".zip", ".pyz", ".pyc")):
        runpy.run_path(path, run_name="__main__")  # rare cases, left to python
        return
    loader = SourceFileLoader("__main__", path)
    main.__dict__.update(__file__=path, __cached__=None, __loader__=loader, __package__=None, __annotations__={})
    code = compile(loader.get_data(path), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def main() -> None:
    command = sys.argv[1:]
    torch_check.examine_once()
    session = Session.from_environment()
    assert session is not None, "trainers are started by an agent"
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    end_children_with_this_process()
    forked_child.remember_trainer()
    if not torch_check.is_plain():
        watch_schedules()
    watch_wrappers()
    session.start()
    current.session, current.default_group = session, DefaultGroup(session)
    current.default_group.install()
    gc.freeze()  # imported modules stay, so no collection need visit them
    try:
        store = _take_role(session)
    except Unsuitable as error:
        _leave(_refuse(session, str(error), unfit=True))
    assert session.settings is not None
    set_environment(session.rank, session.settings.layout, store.host, session.credentials.secret)
    _leave(_run(session, command))


def _take_role(session: Session) -> Address:
    """Waits for the rank that this process is to run as, live or in a rehearsal. It may change until then."""
    while True:
        session.wait(lambda: _role_to_play(session))
        role = session.playing = session.role
        if isinstance(role, Rehearse) or (role is not None and role.resume is not None):
            session.recording_schedule.require_same_torch(role.rank)
        if not isinstance(role, Seat) or (role.resume is not None and not torch_check.is_plain()):
            return session.store_address
        try:
            return _begin_live(session, role).store
        except Superseded:
            continue


def _begin_live(session: Session, role: Seat) -> Connect:
    """Waits until all ranks may begin the script together."""
    if role.resume is not None:
        connect = plain_start.take_seat(session, role)
    else:
        connect = session.expect(Connect, role.generation)
        with session.changed:
            session.core.take_seat(role.generation, role.rank, role.schedule)
        session.send(Connected(generation=role.generation, rank=role.rank))
    session.ends_at_halt = torch_check.is_plain()
    session.end_if_halted()
    return connect


def _role_to_play(session: Session) -> Seat | Rehearse | None:
    """None: not yet. The agent applies the same rule to know which trainers have begun the script
    (protocol/agent/trainers/readiness.py)."""
    role = session.role
    if isinstance(role, Rehearse):
        recordings = session.recordings.get(role.rank)
        if recordings is None:
            return None
        if is_of_same_torch(recordings) and (recordings.is_void or torch_check.is_plain()):
            return None  # where something is missing, a rehearsal would need groups that communicate with no peer
    return role


def _run(session: Session, command: list[str]) -> int:
    level, reason = torch_check.verdict()
    if level is torch_check.Level.REFUSED:
        return _refuse(session, reason)
    if level is torch_check.Level.WHOLE:
        session.recording_schedule.begin()
    try:
        code = _run_to_exit(session, command)
        if code == 0:
            _end_well(session)
        else:
            _fail_job()
        return code
    except Restart:
        return CODE_RESTART
    except BaseException as error:
        session.leave_if_device_broke()
        traceback.print_exc()
        _fail_job()
        session.send(Failed(error=f"{type(error).__name__}: {error}", inexact=isinstance(error, Inexact)))
        return 1


def _refuse(session: Session, reason: str, *, unfit: bool = False) -> int:
    print(reason, file=sys.stderr)
    session.send(Failed(error=reason, unfit=unfit))
    return 1


def _run_to_exit(session: Session, command: list[str]) -> int:
    """Many scripts end with sys.exit(main()), which is no error if the code is 0 or None."""
    first_start.set_environment_for(session.playing)
    session.file_guard.begin(command)
    session.code_watch.begin()
    session.served_stores.begin()
    try:
        with forked_child.ending_like_python():
            run_program(command)
        return 0
    except SystemExit as stop:
        return _exit_code(session, stop)


def _end_well(session: Session) -> None:
    if current.job is not None:
        current.job.leave()
        return
    session.emit("unprotected")  # otherwise it might go unnoticed that a fault would have lost all work
    if session.rank == 0:
        note("the script ended without calling protect(): this job was not protected, and a fault would have ended it")


def _fail_job() -> None:
    if current.job is not None:
        current.job.fail()


def _exit_code(session: Session, stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        if stop.code:
            session.send(Exits(code=stop.code))
        return stop.code or 0
    print(stop.code, file=sys.stderr)
    session.send(Failed(error=str(stop.code)))
    return 1


def _leave(code: int) -> None:
    """Runs exit handlers but no destructors: one of a broken group could hang the exit."""
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
