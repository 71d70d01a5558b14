"""Records as a job logs them, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]


def progress(t: float, *, step: int, counts: list[int] | None = None, seconds: float = 0.0, **more: Any) -> Record:
    fields = {"phase": "running", "watermark": step, "lag_steps": 0, "every": 1, "nodes": 3, "spares": 1}
    fields |= {"quarantined": 0, "stragglers": 0, "arena_bytes": 1000, "sent_bytes": 100}
    fields |= {"step_counts": counts or [0] * 16, "step_seconds": seconds}
    return {"t": t, "what": "progress", "step": step, **fields, **more}


def start(t: float = 100.0) -> list[Record]:
    own = {"cause": "start", "generation": "1.1"}
    planned = {"t": t, "what": "planned", "step": 0, "resume": None, "seats": ["n0", "n1"], "lost_steps": 0, **own}
    return [planned, {"t": t + 1, "what": "prepared", **own}, {"t": t + 2, "what": "go", **own}]


def recovery(t: float, *, number: int, lost_steps: int = 0, step: int = 10, ranks: int = 2) -> list[Record]:
    """A node is lost at `t`: fenced after 1 s, planned after 2, prepared after 4, go after 8, every rank after 9."""
    before = {"cause": f"fault-{number}", "generation": f"1.{number}"}
    own = {"cause": f"fault-{number}", "generation": f"1.{number + 1}"}
    lost = {"node": "n1", "ranks": [1], "reason": "link to node n1 lost", "during": "running"}
    plan = {"step": step, "resume": "v10@1.1", "seats": ["n0", "n2"], "lost_steps": lost_steps}
    return [
        {"t": t, "what": "fault", **before, **lost},
        {"t": t + 1, "what": "fenced", **own},
        {"t": t + 2, "what": "planned", **own, **plan},
        {"t": t + 4, "what": "prepared", **own},
        *({"t": t + 7, "what": "rebuilt", "rank": rank, "trainer": f"n{rank}.0", **own} for rank in range(ranks)),
        {"t": t + 8, "what": "go", **own},
        *({"t": t + 9, "what": "resumed", "rank": rank, "trainer": f"n{rank}.0", **own} for rank in range(ranks)),
    ]
