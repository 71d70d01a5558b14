"""Durable checkpoints on this node: files in and out, and the processes that write.

`CheckpointWriters`: the processes that write an agent's part of durable checkpoints, one for each write. The agent
only waits for them.

A store that hangs hangs its process and the thread here that waits for it, and nothing else.

`CheckpointFiles` and `Load`: the agent's half of durable checkpoints: copies slots out of the arena for a writer,
and loads snapshots back.

Slots are copied first and then written, so that a slow store keeps no slot from the trainers.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np

from deadpool.control.shells import DataPlaneAccess, DataShell
from deadpool.durable.manifest import FinishTask, PartTask, StagedCopy, Task, encode_task, load_rank
from deadpool.durable.store import open_store
from deadpool.errors import ArenaError, DeadPoolError, TransferError
from deadpool.host.child_processes import end_with_parent
from deadpool.protocol.effects import CompleteCheckpoint, EndWriter, FeatureEffect, FetchCopy, WritePart
from deadpool.protocol.identity import NO_GENERATION, Generation
from deadpool.protocol.inputs import AgentInput, CheckpointFinished, Fetched, FetchFailed, PartWritten, Staged
from deadpool.protocol.messages import Settings
from deadpool.snapshot.arena.arena import Segment

Result = PartWritten | CheckpointFinished


class CheckpointWriters:
    def __init__(self, deliver: Callable[[Result], None]) -> None:
        """`deliver` takes results from any thread."""
        self._deliver = deliver
        self._lock = threading.Lock()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ended: set[str] = set()  # checkpoints that were given up
        self._closed = False

    def start(self, task: Task, then: Callable[[], None] = lambda: None) -> None:
        """`then` is called when the process has ended, in another thread."""
        threading.Thread(target=self._run, args=(task, then), name="checkpoint", daemon=True).start()

    def end(self, name: str) -> None:
        with self._lock:
            self._ended.add(name)
            process = self._running.get(name)
        if process is not None:
            _kill(process)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            running = list(self._running.values())
        for process in running:
            _kill(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2.0)  # a process that hangs in the kernel is left to it

    def _run(self, task: Task, then: Callable[[], None]) -> None:
        written, failure = 0, ""
        try:
            process = self._spawn(task)
            if process is not None:
                written, failure = self._await(process, task)
        except (OSError, ValueError) as error:
            failure = f"the writer did not start: {error}"
        finally:
            with self._lock:
                self._running.pop(task.name, None)
            then()
        with self._lock:
            if self._closed or task.name in self._ended:
                return
        kind = PartWritten if isinstance(task, PartTask) else CheckpointFinished
        self._deliver(kind(name=task.name, bytes_written=written, failure=failure))

    def _spawn(self, task: Task) -> subprocess.Popen[bytes] | None:
        """Under the lock, so that whoever ends a write finds its process."""
        descriptors = tuple(staged.fd for staged in task.copies) if isinstance(task, PartTask) else ()
        with self._lock:
            if self._closed or task.name in self._ended:
                return None
            self._running[task.name] = process = subprocess.Popen(
                [sys.executable, "-m", "deadpool.durable.writer"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                pass_fds=descriptors,
                preexec_fn=end_with_parent(signal.SIGKILL),
            )
            return process

    def _await(self, process: subprocess.Popen[bytes], task: PartTask | FinishTask) -> tuple[int, str]:
        output, _ = process.communicate(encode_task(task))
        try:
            answer = json.loads(output.splitlines()[-1])
            return int(answer["bytes"]), str(answer["failure"])
        except (ValueError, IndexError, KeyError, TypeError):
            return 0, f"the writer ended with code {process.returncode} and no answer"


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


_CHUNK_BYTES = 16 << 20


class DurableFiles(DataShell):
    def __init__(self, access: DataPlaneAccess) -> None:
        self._deliver, self._slot, self._stream = access.deliver, access.slot, access.stream
        self._writers = CheckpointWriters(access.deliver)
        self._settings: Settings | None = None
        self._fenced: Generation = NO_GENERATION  # older ones have ended
        self._loads: set[CheckpointLoad] = set()

    def use(self, settings: Settings) -> None:
        self._settings = settings

    def close(self) -> None:
        for load in list(self._loads):
            load.cancel()
        self._writers.close()

    def perform(self, effect: FeatureEffect) -> bool:
        match effect:
            case WritePart():
                self._stream(functools.partial(self._write_part, effect))
            case CompleteCheckpoint():
                self._finish(effect)
            case EndWriter(name=name):
                self._writers.end(name)
            case _:
                return False
        return True

    # --- writing -----------------------------------------------------------------------------------------------------

    def _write_part(self, effect: WritePart) -> None:
        """Writes a part in a thread whose end a fence waits for: the slots are free when it is over."""
        assert self._settings is not None and self._settings.durable is not None
        durable = self._settings.durable
        segments: list[Segment] = []
        failure = ""
        try:
            for ref, copy, _ in effect.copies:
                segment = Segment.create(f"checkpoint-{copy.seal.rank}", copy.geometry, 1)
                segments.append(segment)
                self._copy(self._slot(ref), segment.slot(0), effect.generation)
        except (ArenaError, TransferError) as error:
            failure = str(error)
        self._deliver(Staged(name=effect.name, slots=tuple(ref for ref, _, _ in effect.copies)))
        if failure:
            _close(segments)
            self._deliver(PartWritten(name=effect.name, bytes_written=0, failure=failure))
            return
        staged = [
            StagedCopy(fd=segment.fd, copy=copy, recording=recording)
            for segment, (_, copy, recording) in zip(segments, effect.copies, strict=True)
        ]
        task = PartTask(
            where=durable.where,
            name=effect.name,
            nice=durable.nice,
            bytes_per_s=durable.bytes_per_s,
            copies=tuple(staged),
        )
        self._writers.start(task, lambda: _close(segments))

    def _copy(self, source: memoryview, target: memoryview, generation: Generation) -> None:
        """In chunks, since a recovery does not wait for it."""
        taken, given = np.frombuffer(source, np.uint8), np.frombuffer(target, np.uint8)
        for start in range(0, len(taken), _CHUNK_BYTES):
            if generation < self._fenced:
                raise TransferError("a recovery began before the snapshots were copied")
            np.copyto(given[start : start + _CHUNK_BYTES], taken[start : start + _CHUNK_BYTES])

    def _finish(self, effect: CompleteCheckpoint) -> None:
        assert self._settings is not None and self._settings.durable is not None
        durable, layout = self._settings.durable, self._settings.layout
        task = FinishTask(
            where=durable.where,
            name=effect.name,
            nice=durable.nice,
            job=durable.job,
            step=effect.number,
            positions=layout.positions,
            per_node=layout.per_node,
            keep_last=durable.keep_last,
            keep_every=durable.keep_every,
            copies=effect.copies,
        )
        self._writers.start(task)

    # --- reading -----------------------------------------------------------------------------------------------------

    def load(self, fetch: FetchCopy) -> bool:
        """Loads a part in a thread that nothing waits for: a store may hang. After a fence it writes into no slot any
        more.
        """
        load = CheckpointLoad(fetch, self._slot(fetch.slot), self._deliver)
        self._loads.add(load)
        threading.Thread(target=self._run, args=(load,), name="checkpoint-load", daemon=True).start()
        return True

    def _run(self, load: CheckpointLoad) -> None:
        assert self._settings is not None and self._settings.durable is not None
        load.run(self._settings.durable.where)
        self._loads.discard(load)

    def cut(self, generation: Generation) -> None:
        """No slot is read or written for an older generation after this, once the threads of _write_part() have
        ended."""
        self._fenced = max(self._fenced, generation)
        for load in list(self._loads):
            if load.generation < generation:
                load.cancel()


class CheckpointLoad:
    """One rank's snapshot on its way from the store into a slot."""

    def __init__(self, effect: FetchCopy, slot: memoryview, deliver: Callable[[AgentInput], None]) -> None:
        self._effect, self._slot, self._deliver = effect, slot, deliver
        self._lock = threading.Lock()
        self._is_cancelled = False

    @property
    def generation(self) -> Generation:
        return self._effect.generation

    def run(self, where: str) -> None:
        effect = self._effect
        try:
            load_rank(open_store(where), effect.fetch.fallback, effect.fetch.copy, self._slot, self._put)
        except Exception as error:  # damaged files give errors of any kind, and the coordinator would wait for news
            text = str(error) if isinstance(error, (OSError, DeadPoolError)) else f"{type(error).__name__}: {error}"
            name = effect.fetch.fallback
            reason = f"checkpoint {name}: {text}"
            self._tell(FetchFailed(rank=effect.rank, slot=effect.slot, reason=reason, fallback=name))
        else:
            self._tell(Fetched(rank=effect.rank, slot=effect.slot, copy=effect.fetch.copy))

    def cancel(self) -> None:
        with self._lock:
            self._is_cancelled = True

    def _put(self, start: int, data: memoryview) -> None:
        with self._lock:
            if self._is_cancelled:
                raise TransferError("the generation has ended")
            self._slot[start : start + len(data)] = data

    def _tell(self, input: AgentInput) -> None:
        """Delivers an input, but not after a fence: the slot may be another's by then."""
        with self._lock:
            if not self._is_cancelled:
                self._deliver(input)


def _close(segments: list[Segment]) -> None:
    for segment in segments:
        segment.close()
