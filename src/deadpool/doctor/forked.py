"""Runs checks side by side, each in a process of its own, and gives up on those that do not end.

A stale NFS mount or a sick GPU can stop a process in the kernel, where no signal reaches it. So the caller never waits
for a child without a deadline, and a child has none of the caller's descriptors: whoever reads the output of the
doctor is not kept waiting by it either.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from deadpool.doctor.finding import Facts, Finding

Check = Callable[[], tuple[Facts, list[Finding]]]

_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class NoOutcome:
    reason: str
    hangs: bool = False  # it did not end in time


Outcome = tuple[Facts, list[Finding]] | NoOutcome


@dataclass(slots=True)
class _Child:
    pid: int
    descriptor: int
    data: bytearray


def run_all(checks: Mapping[str, Check], timeout_s: float) -> dict[str, Outcome]:
    """Call it in a process with one thread: a fork copies that one only."""
    children = {name: _start(check) for name, check in checks.items()}
    deadline = time.monotonic() + timeout_s
    ended = _collect(children, deadline)
    return {name: _outcome(child, name in ended, timeout_s) for name, child in children.items()}


def _start(check: Check) -> _Child:
    near, far = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_child(check, far)
    os.close(far)
    return _Child(pid, near, bytearray())


def _be_child(check: Check, far: int) -> None:
    try:
        os.setpgid(0, 0)  # what it starts ends with it
        os.dup2(far, 3)
        os.closerange(4, 1 << 16)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nowhere, standard)
        try:
            facts, findings = check()
            answer = {"facts": facts, "findings": [each.to_json() for each in findings]}
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        data = json.dumps(answer).encode()
        while data:
            data = data[os.write(3, data) :]
    finally:
        os._exit(0)


def _collect(children: Mapping[str, _Child], deadline: float) -> set[str]:
    """The names of those that ended in time."""
    poller = select.poll()
    waiting = {child.descriptor: name for name, child in children.items()}
    for descriptor in waiting:
        poller.register(descriptor, select.POLLIN)
    ended = set()
    while waiting and (left_s := deadline - time.monotonic()) > 0:
        for descriptor, _ in poller.poll(1e3 * left_s):
            name = waiting[descriptor]
            if data := os.read(descriptor, _CHUNK_BYTES):
                children[name].data += data
            else:
                poller.unregister(descriptor)
                del waiting[descriptor]
                ended.add(name)
    return ended


def _outcome(child: _Child, ended: bool, timeout_s: float) -> Outcome:
    os.close(child.descriptor)
    if not ended:
        _give_up(child.pid)
        return NoOutcome(f"it did not end within {timeout_s:g} s", hangs=True)
    os.waitpid(child.pid, 0)
    try:
        answer = json.loads(child.data)
    except ValueError:
        return NoOutcome("its process died")
    if "error" in answer:
        return NoOutcome(str(answer["error"]))
    return answer["facts"], [Finding.from_json(each) for each in answer["findings"]]


def _give_up(pid: int) -> None:
    """A process that is stopped in the kernel stays until the kernel lets it go; init reaps it then."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(pid, signal.SIGKILL)  # it has not left our group yet
    deadline = time.monotonic() + 0.1
    while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.005)
