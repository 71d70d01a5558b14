"""Which torch this is, whether all nodes have it, and what can be relied on in it.

Decides, before the first process group is made, what can be relied on in this torch.

    whole     everything works that adapters and groups rely on. Whether survivors keep their processes is decided by
              the version all the same (adapters/wrappers.py): not every difference shows in a test
    plain     something does not. Nothing private is used: after a fault every rank is a fresh process, and they begin
              the script together over torch's own groups (plain_start.py)
    refused   not even that works, and the job ends with a sentence that says why

The test is run in a process of its own: it makes groups, which leave threads behind, and an assumption that does not
hold may crash. The fork server asks once per node, and its trainers inherit the answer.

`name`, `compare_with_rank_0` and `different` refuse a job whose nodes have different torches.

Ranks under two versions would not compute the same bits, and where one node passes the self-test of torch_check.py
and another one does not, they would make groups in two ways that never meet. Ranks that begin a script compare
themselves with rank 0 when they make their first group. A spare compares itself with the live rank whose recording
it gets, before its rehearsal, and its node leaves the job, so that nobody counts on it. Ranks that begin from a
checkpoint compare nothing: the torch of an earlier job may be another one, and they begin as spares do.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

import torch
import torch.distributed as dist

from deadpool.backend import torch_versions
from deadpool.backend.groups import Groups
from deadpool.backend.plain_groups import PlainGroups
from deadpool.backend.store import ReleasableStore
from deadpool.errors import Unsuitable
from deadpool.host.child_processes import end_with_parent

_LIMIT_S = 600.0
"""The test takes a tenth of a second. One that takes so long hangs; in a tested version that is the machine's fault."""


class Level(Enum):
    WHOLE = "whole"
    PLAIN = "plain"
    REFUSED = "refused"


class Verdict(NamedTuple):
    level: Level
    reason: str  # empty where everything works


class Problem(NamedTuple):
    """What a test has found. Not of torch: the machine may be too busy, or have no memory or ports left."""

    text: str
    is_of_torch: bool


_OF_TORCH = (Unsuitable, AttributeError, ImportError, NameError, NotImplementedError, TypeError)
_OF_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
_known: Verdict | None = None


def import_problem(error: ImportError | AttributeError) -> str:
    """What to say where this package cannot even be imported."""
    text = str(error).partition(" (/")[0]
    return f"DeadPool cannot work with torch {torch.__version__}: {text}. Another version of torch is needed"


def examine_once() -> None:
    """Called before threads are started and before CUDA is used, since a process is forked."""
    global _known
    if _known is None:
        _known = examine()


def verdict() -> Verdict:
    return _known or Verdict(Level.WHOLE, "")


def is_plain() -> bool:
    return verdict().level is Level.PLAIN


def examine() -> Verdict:
    missing = _problem_in_child(_use_everything)
    if missing is None or (torch_versions.is_tested() and not missing.is_of_torch):
        return Verdict(Level.WHOLE, "")
    fatal = _problem_in_child(_use_plain_groups)
    name = f"torch {torch.__version__}"
    if fatal is not None:
        sentence = f"DeadPool cannot work with {name}: {fatal.text}. Another version of torch is needed"
        return Verdict(Level.REFUSED, sentence)
    return Verdict(
        Level.PLAIN,
        f"DeadPool relies on something that {name} does not have: {missing.text}. After a fault every process of the "
        "job is replaced, and the script begins again before its state is loaded from memory: slower, as exact",
    )


def _use_everything() -> None:
    from deadpool.backend import self_test

    self_test.check_names()
    from deadpool.trainer.adapters import self_test as of_adapters  # which imports some of these names

    with self_test.rehearsing_groups():
        self_test.check_rehearsal()
        of_adapters.check_ddp()
        of_adapters.check_fsdp2()
        of_adapters.check_pipeline()
        self_test.check_interception()
        self_test.check_nccl()
        self_test.check_swap()


def _use_plain_groups() -> None:
    """Public names only, but for the store: ranks meet in one that is written in Python."""
    dist.init_process_group("gloo", store=ReleasableStore(dist.HashStore()), rank=0, world_size=1)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    if (dist.get_rank(), dist.get_world_size(), tensor.item()) != (0, 1, 1.0):
        raise RuntimeError("a group of one rank does not add up")


def _problem_in_child(test: Callable[[], None]) -> Problem | None:
    """What the test raised, in one line; None if it ended well."""
    tie_to_parent = end_with_parent()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _run_and_exit(test, writing, tie_to_parent)
    os.close(writing)
    try:
        problem = _read(reading, child, time.monotonic() + _LIMIT_S)
    finally:
        os.close(reading)
        _, status = os.waitpid(child, 0)
    return _crash(status) or problem


def _crash(status: int) -> Problem | None:
    """A process that accesses memory in a wrong way does so because torch is laid out in another way than was assumed;
    one that is killed may have met a machine without memory."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    if number not in _OF_CRASHES:
        return None
    return Problem(f"its self-test crashed with {signal.Signals(number).name}", is_of_torch=True)


def _run_and_exit(test: Callable[[], None], writing: int, tie_to_parent: Callable[[], None]) -> None:
    """Nothing is freed, since that may hang or crash, and exit handlers are the parent's."""
    try:
        tie_to_parent()
        os.write(writing, _found(test).encode()[:2000])
    finally:
        os._exit(0)


def _found(test: Callable[[], None]) -> str:
    """Whose fault it is, and in the next line what it is; "." if there is nothing."""
    try:
        test()
        return "."
    except BaseException as error:
        text = str(error).strip().partition("\n")[0].rstrip(".:")
        whose = "torch" if isinstance(error, _OF_TORCH) else "machine"
        return f"{whose}\n{text if isinstance(error, Unsuitable) else f'{type(error).__name__}: {text}'}"


def _read(reading: int, child: int, deadline: float) -> Problem | None:
    if not select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
        os.kill(child, signal.SIGKILL)
        return Problem(f"its self-test did not end within {_LIMIT_S:g} s", is_of_torch=False)
    whose, _, text = os.read(reading, 4096).decode().partition("\n")
    if whose == ".":
        return None
    return Problem(text or "its self-test crashed", is_of_torch=whose == "torch")


_KEY = "torch of rank 0"


def name() -> str:
    """What has to be the same on all nodes."""
    level = verdict().level
    lacking = "" if level is Level.WHOLE else ", which lacks something that DeadPool relies on"
    return f"torch {torch.__version__}{lacking}"


def compare_with_rank_0(groups: Groups | PlainGroups, store: dist.Store, rank: int) -> None:
    """Waits for rank 0, as the group that is made next would, and as long as that."""
    if rank == 0:
        store.set(_KEY, name())
    elif (theirs := groups.read(store, _KEY).decode()) != name():
        raise different(theirs, of="rank 0")


def different(theirs: str, *, of: str) -> Unsuitable:
    return Unsuitable(
        f"this node has {name()}; {of} has {theirs}: all nodes of a job need the same torch, complete or not"
    )
