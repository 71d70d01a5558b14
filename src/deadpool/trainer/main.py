"""Runs a user's script as a trainer: waits for a rank, sets the environment, runs the script, again if it has to.

A spare runs the script to rehearse. When it is seated at another rank than it rehearsed, everything the script built
depends on the wrong rank, so the script is run again from its first line, in this warm process.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import runpy
import sys
import sysconfig
import traceback
from pathlib import Path

import torch
import torch.distributed
import torch.distributed.fsdp
import torch.distributed.optim
import torch.distributed.pipelining
import torch.distributed.tensor

from deadpool.protocol.messages import Connect, Connected, Failed, Seat
from deadpool.protocol.topology import Address
from deadpool.trainer import current
from deadpool.trainer.adapters.pipeline_schedules import forget_schedules, watch_schedules
from deadpool.trainer.environment import set_environment
from deadpool.trainer.offspring import end_offspring_with_this_process
from deadpool.trainer.session import Session
from deadpool.trainer.signals import CODE_RESTART, Restart, RunAgain, Superseded


def main() -> None:
    script, *arguments = sys.argv[1:]
    session = Session.from_environment()
    assert session is not None, "trainers are started by an agent"
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    end_offspring_with_this_process()
    watch_schedules()
    session.start()
    current.session = session
    gc.freeze()  # what is imported stays; a spare's clean-up between two runs need not look at it
    _leave(_run_until_done(session, script, arguments))


def _run_until_done(session: Session, script: str, arguments: list[str]) -> int:
    while True:
        store = _take_role(session)
        assert session.settings is not None
        set_environment(session.rank, session.settings.layout, store.host, session.credentials.secret)
        try:
            return _run(session, script, arguments)
        except RunAgain:
            pass  # the old run's frames, and what they hold, go with the exception
        _forget(session)


def _take_role(session: Session) -> Address:
    """Blocks until this process is told which rank to be, for real or in rehearsal."""
    while True:
        session.wait(lambda: session.role is not None or None)
        role = session.playing = session.role
        if not isinstance(role, Seat) or role.resume is not None:
            return session.store_address
        try:
            connect = session.expect(Connect, role.generation)
        except Superseded:
            continue
        with session.changed:
            session.core.take_seat(role.generation, role.rank, role.schedule)
        session.send(Connected(generation=role.generation, rank=role.rank))
        return connect.store


def _run(session: Session, script: str, arguments: list[str]) -> int:
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    known = set(sys.modules)
    session.prompting.begin()
    try:
        runpy.run_path(script, run_name="__main__")
        if current.job is not None:
            current.job.leave()
        return 0
    except RunAgain:
        _unload(set(sys.modules) - known)
        raise
    except Restart:
        return CODE_RESTART
    except SystemExit as stop:
        _fail_job()
        return _exit_code(session, stop)
    except BaseException as error:
        session.leave_if_device_broke()
        traceback.print_exc()
        _fail_job()
        session.send(Failed(error=f"{type(error).__name__}: {error}"))
        return 1


def _fail_job() -> None:
    if current.job is not None:
        current.job.fail()


def _exit_code(session: Session, stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or 0
    print(stop.code, file=sys.stderr)
    session.send(Failed(error=str(stop.code)))
    return 1


def _forget(session: Session) -> None:
    """As if the script had not run: its groups, its modules, its memory."""
    session.emit("runs_again")
    current.job = None
    session.prompting.end()
    session.groups.destroy()
    forget_schedules()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _unload(names: set[str]) -> None:
    """The user's own modules may have remembered a rank; installed packages are kept."""
    installed = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib"))
    for name in names:
        path = getattr(sys.modules[name], "__file__", None)
        if path is not None and not path.startswith(installed) and not name.startswith("deadpool"):
            del sys.modules[name]


def _leave(code: int) -> None:
    """Exit handlers run, but no destructor can hang the end of a process whose groups may be broken."""
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
