"""Events and status of jobs of any size, in the shapes that real jobs log, for tests of what the dashboard shows."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deadpool.views.metrics.folds import STEP_BUCKETS_S, Histogram

Record = dict[str, Any]
T0 = 1_794_884_600.0
STEP_S = 0.5


def node_name(index: int) -> str:
    return f"gpu-{index:04d}"


def start(nodes: int, spares: int, *, per_rack: int = 32) -> Iterator[Record]:
    for index in range(nodes + spares):
        name = node_name(index)
        yield {"t": T0, "what": "joined", "generation": "0.0", "node": name, "spare": index >= nodes}
        machine = {"rack": f"rack-{index // per_rack}", "memory_bytes": 2 * 10**12, "link_gbps": 50.0}
        yield {"t": T0 + 1, "what": "machine", "node": name, **machine}
    seats = [node_name(index) for index in range(nodes)]
    yield from plan("start", T0 + 2, seats, step=0, resume=None)
    yield {"t": T0 + 8, "what": "go", "cause": "start", "generation": "1.1"}


def plan(
    cause: str, t: float, seats: list[str], *, step: int, resume: str | None, lost_steps: int = 0
) -> Iterator[Record]:
    head = {"cause": cause, "generation": "1.1"}
    yield {"t": t, "what": "planned", **head, "step": step, "resume": resume, "seats": seats, "lost_steps": lost_steps}
    yield {"t": t + 1, "what": "prepared", **head}


def progress(begin: int, end: int) -> Iterator[Record]:
    for step in range(begin, end, 10):
        yield progress_record(T0 + 8 + STEP_S * step, step)


def progress_record(t: float, step: int, steps: int = 10) -> Record:
    """After `steps` more steps."""
    times = Histogram(STEP_BUCKETS_S)
    for _ in range(steps):
        times.add(STEP_S)
    detail = {
        "watermark": step,
        "spares": 1,
        "overhead": 0.0015,
        "overhead_error": 0.0004,
        "sent_bytes": 10**9,
        "step_counts": times.counts,
        "step_seconds": times.total,
        "arena_bytes": 4 * 10**9,
    }
    return {"t": t, "what": "progress", "step": step, **detail}


def fault(
    number: int,
    t: float,
    seats: list[str],
    *,
    position: int,
    spare: str,
    per_node: int,
    step: int,
    until: str = "resumed",
) -> Iterator[Record]:
    """Position's node is lost, and the spare takes its ranks. `until` is the last event of it that has happened."""
    cause, node, lost = f"fault-{number}", seats[position], list(range(position * per_node, (position + 1) * per_node))
    head = {"cause": cause, "generation": f"1.{number + 1}"}
    new_seats = [spare if index == position else name for index, name in enumerate(seats)]
    story: list[Record] = [
        {"t": t, "what": "fault", **head, "node": node, "reason": f"link to node {node} lost: closed", "ranks": lost,
         "during": "running"},
        {"t": t + 0.001, "what": "fence", **head},
        {"t": t + 0.1, "what": "fenced", **head},
        {"t": t + 0.11, "what": "planned", **head, "step": step, "resume": f"v{step}@1.{number}", "seats": new_seats,
         "lost_steps": 1},
        {"t": t + 0.5, "what": "prepared", **head},
        {"t": t + 0.7, "what": "go", **head},
    ]  # fmt: skip
    for rank in range(len(seats) * per_node):
        trainer = f"{new_seats[rank // per_node]}.{rank % per_node}"
        marks = (
            (("built", 0.4), ("restored", 0.45))
            if rank in lost
            else (("aborted", 0.02), ("unwound", 0.05), ("restored", 0.12))
        )
        for what, at in (*marks, ("rebuilt", 0.65), ("resumed", 1.2 + 0.001 * (rank % 7))):
            story.append({"t": t + at, "what": what, **head, "rank": rank, "trainer": trainer, "step": step})
    for record in sorted(story, key=lambda each: each["t"]):
        yield record
        if record["what"] == until and until != "resumed":
            return


def job_json(nodes: int, per_node: int) -> dict[str, Any]:
    settings = {"nodes": nodes, "nproc_per_node": per_node, "node_timeout_s": 5.0}
    versions = {"deadpool": "0.0", "python": "3.11", "torch": "2.13.0"}
    place = {"host": "127.0.0.1", "port": 1, "pid": 1, "tls": "off"}
    return {**place, "nodes": nodes, "nproc_per_node": per_node, "settings": settings, "versions": versions}


def status(seats: list[str], spares: list[str], per_node: int, step: int) -> dict[str, Any]:
    """As a coordinator answers it."""
    nodes = [_node(seats, index, per_node, step) for index in range(len(seats))] + [
        _spare(name, per_node) for name in spares
    ]
    ranks = [
        {"rank": rank, "node": seats[rank // per_node], "pushed_version": step - 1, "unique_bytes": 10**9,
         "wire_bytes_per_step": 10.0**9, "copied_bytes_per_step": 10.0**9}
        for rank in range(len(seats) * per_node)
    ]  # fmt: skip
    return {
        "phase": "running", "term": 1, "generation": "1.1", "cause": "start", "world_size": len(ranks), "step": step,
        "watermark": step - 1, "lag_steps": 1, "protected": True, "copies_missing": 0,
        "interval": {"every": 1, "from": 0, "budget": 0.001},
        "overhead": {"share": 0.0015, "error": 0.0004, "comparisons": 40}, "durable": None, "spares": len(spares),
        "drain": None, "stragglers": [], "same_rack": [], "nodes": nodes, "ranks": ranks,
    }  # fmt: skip


def _node(seats: list[str], position: int, per_node: int, step: int) -> dict[str, Any]:
    ranks, name = range(position * per_node, (position + 1) * per_node), seats[position]
    return {
        "node": name, "rack": None, "quarantined": None, "role": "active", "position": position,
        "ranks": list(ranks), "steps": {str(rank): step for rank in ranks}, "own_s": {}, "paused": {},
        "holders": [seats[(position + 33) % len(seats)]] if len(seats) > 1 else [],
        "trainers": [{"trainer": f"{name}.{i}", "state": "seated", "rank": rank} for i, rank in enumerate(ranks)],
        "arena_bytes": 10**11, "bytes_pushed": 10**12, "push_gbps": 21.5, "memory_bytes": 2 * 10**12, "link_gbps": 50.0,
    }  # fmt: skip


def _spare(name: str, per_node: int) -> dict[str, Any]:
    return {
        "node": name, "rack": None, "quarantined": None, "role": "spare", "position": None, "ranks": [], "steps": {},
        "own_s": {}, "paused": {}, "holders": [], "arena_bytes": 10**10, "bytes_pushed": 0, "push_gbps": None,
        "trainers": [{"trainer": f"{name}.{i}", "state": "parked", "rank": i} for i in range(per_node)],
    }  # fmt: skip


def write_run(
    folder: Path, records: list[Record], *, nodes: int, per_node: int, losses: list[float] | None = None
) -> Path:
    (folder / "logs").mkdir(parents=True)
    (folder / "secret").write_text("0123456789abcdef" * 4)
    (folder / "secret").chmod(0o600)
    (folder / "job.json").write_text(json.dumps(job_json(nodes, per_node)))
    (folder / "events.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if losses:
        (folder / "journal").mkdir()
        (folder / "journal" / "rank-00000.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in _journal(losses))
        )
    return folder


def _journal(losses: list[float]) -> Iterator[Record]:
    """With some noise, and the standstill of the fault after 100 steps."""
    noise, t = random.Random(0), T0 + 8
    for step, loss in enumerate(losses):
        t += STEP_S * noise.uniform(0.95, 1.08) + (1.2 if step == 99 else 0.0)
        values = {"train": {"loss": loss * noise.uniform(0.97, 1.03)}}
        yield {"run": "a", "rank": 0, "step": step, "time": t, "values": values}


def small_run(folder: Path) -> Path:
    """Four nodes of two ranks and a spare; a node was lost after 100 steps, and the job has completed."""
    seats = [node_name(index) for index in range(4)]
    at = T0 + 8 + STEP_S * 100
    records = [*start(4, 1, per_rack=2), *progress(0, 100)]
    records += fault(1, at, seats, position=1, spare=node_name(4), per_node=2, step=99)
    records += [{**each, "t": each["t"] + 2} for each in progress(101, 200)]
    records.append({"t": T0 + 120, "what": "completed", "cause": "fault-1", "reason": "all ranks ended"})
    return write_run(folder, records, nodes=4, per_node=2, losses=[2 + 9.0 / (1 + step / 20) for step in range(200)])


SEATS_OF_SMALL_RUN = [node_name(0), node_name(4), node_name(2), node_name(3)]
"""After its fault."""


def audits(t: float, *steps: int) -> Iterator[Record]:
    """Audits of steps that find nothing, and a last one in which rank 2 on the second node has erred."""
    *alike, last = steps
    for number, step in enumerate(alike):
        yield {"t": t + number, "what": "step_audit_ordered", "step": step}
        yield {"t": t + number + 0.5, "what": "step_audit_passed", "step": step, "ranks": 8, "computed": 2}
    t += len(alike)
    where = {"step": last, "ranks": [2], "nodes": [node_name(1)]}
    yield {"t": t, "what": "step_audit_ordered", "step": last}
    yield {"t": t + 0.3, "what": "step_audit_differs", **where, "stage": "gradients", "part": "gradient of 3.weight"}
    yield {"t": t + 0.6, "what": "step_audit_passed", "step": last, "ranks": 8, "computed": 3}
    found = {"node": node_name(1), "rank": 2, "ranks": [2], "found": "changed", "errors": 1}
    yield {"t": t + 0.6, "what": "corruption_found", "step": last, **found, "digests": ["0a"], "others": ["0b"],
           "reason": "rank 2 says something else the second time"}  # fmt: skip
