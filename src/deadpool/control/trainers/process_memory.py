"""What a process takes of the host's memory for itself: pages that it shares with its fork server are left out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from deadpool.protocol.agent.trainers.trainers import NodeTrainers, TrainerState
from deadpool.protocol.inputs import RehearsalMeasured

_PRIVATE = ("Private_Clean:", "Private_Dirty:", "Private_Hugetlb:", "Swap:")


def private_bytes(pid: int, proc: Path = Path("/proc")) -> int | None:
    """None: it has ended, or the kernel does not say."""
    try:
        lines = (proc / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(_PRIVATE))


def newly_parked(trainers: NodeTrainers, pids: Mapping[str, int]) -> list[RehearsalMeasured]:
    """Measures each process once, when it is parked: the kernel walks through all of its pages for that."""
    found = []
    for name, trainer in trainers.by_name.items():
        if trainer.state is TrainerState.PARKED and not trainer.memory_bytes and name in pids:
            taken = private_bytes(pids[name])
            found += [RehearsalMeasured(trainer=name, memory_bytes=taken)] if taken is not None else []
    return found
