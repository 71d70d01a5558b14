"""The process that writes to the store, and which checkpoints stay there.

Which checkpoints stay: the newest `keep_last`, and every one whose step is a multiple of `keep_every`. No torch.

`write_parts`, `finish` and `main`: the process that writes to the store: `python -m deadpool.durable.writer`,
started by an agent, niced, one thread.

It gets its task on stdin and answers with one line of JSON. It is apart from the agent because it needs torch, and
because a store that hangs must hang nothing but this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import msgpack

from deadpool.durable.manifest import (
    MANIFEST,
    FinishTask,
    Manifest,
    PartTask,
    complete_ones,
    decode_task,
    encode_manifest,
    what_is_missing,
)
from deadpool.durable.rate import RateLimit, facts_of
from deadpool.durable.shards import decode_part, part_path
from deadpool.durable.store import Store, open_store
from deadpool.errors import DeadPoolError
from deadpool.snapshot.arena.arena import Segment

PREFIX = "step-"


def superfluous(manifests: Sequence[Manifest], keep_last: int, keep_every: int) -> list[str]:
    """`manifests` are newest first. The newest one always stays. keep_last 0: all stay."""
    if keep_last == 0:
        return []
    older = manifests[max(1, keep_last) :]
    return [each.name for each in older if not (keep_every and each.step % keep_every == 0)]


def torn(store: Store, manifests: Sequence[Manifest]) -> list[str]:
    """Folders of writes that were cut off, or are under way."""
    complete = {manifest.name for manifest in manifests}
    return [name for name in store.folders() if step_of(name) is not None and name not in complete]


def step_of(name: str) -> int | None:
    """None: this is no folder of a checkpoint, and not ours to touch."""
    digits = name.removeprefix(PREFIX).partition("-")[0]
    return int(digits) if name.startswith(PREFIX) and digits.isdigit() else None


def discard_old(store: Store, keep_last: int, keep_every: int, *, newest: Manifest) -> list[str]:
    """What cannot be deleted now is tried again the next time: it is in nobody's way."""
    manifests = complete_ones(store)
    cut_off = [name for name in torn(store, manifests) if (step_of(name) or 0) < newest.step]
    names = [*superfluous(manifests, keep_last, keep_every), *cut_off]
    gone = []
    for name in names:
        if name != newest.name:
            with contextlib.suppress(OSError):
                store.delete(name)
                gone.append(name)
    return gone


def write_parts(task: PartTask) -> int:
    from deadpool.durable.part_file import PartWriter

    writer = PartWriter(open_store(task.where), task.name, RateLimit(task.bytes_per_s))
    total = 0
    for staged in task.copies:
        segment = Segment.attach(staged.fd, staged.copy.geometry, 1)
        total += writer.write(staged.copy, segment.slot(0), staged.recording)
    return total


def finish(task: FinishTask) -> int:
    """Checks that all parts are there and fit together; then the manifest, then what is too old goes."""
    import torch

    from deadpool.durable.metadata import METADATA, encode_metadata

    store = open_store(task.where)
    encoded = {copy.seal.rank: store.read(f"{task.name}/{part_path(copy.seal.rank)}") for copy in task.copies}
    parts = [decode_part(data) for data in encoded.values()]
    files = {path: facts for part in parts for path, facts in part.files.items()}
    for rank, data in encoded.items():
        files[part_path(rank)] = facts_of(data)
    if missing := what_is_missing(store, task.name, files):
        raise OSError(missing)
    metadata = encode_metadata(parts)
    files[METADATA] = facts_of(metadata)
    with store.writing(f"{task.name}/{METADATA}") as file:
        file.write(metadata)
    manifest = Manifest(
        name=task.name,
        job=task.job,
        step=task.step,
        positions=task.positions,
        per_node=task.per_node,
        written_at=time.time(),
        torch=torch.__version__,
        files=files,
        copies=task.copies,
    )
    with store.writing(f"{task.name}/{MANIFEST}") as file:
        file.write(encode_manifest(manifest))
    discard_old(store, task.keep_last, task.keep_every, newest=manifest)
    return manifest.total_bytes


def main() -> None:
    task = decode_task(sys.stdin.buffer.read())
    os.nice(task.nice)  # before torch is imported, which takes most of the CPU time of a small checkpoint
    answer: dict[str, Any]
    try:
        answer = {"bytes": write_parts(task) if isinstance(task, PartTask) else finish(task), "failure": ""}
    except (OSError, DeadPoolError, ValueError, msgpack.UnpackException) as error:
        answer = {"bytes": 0, "failure": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)
    os._exit(0)  # threads of a store's library must not keep this process


if __name__ == "__main__":
    main()
