"""A job whose loop is a library's own, and what is needed so that its faults come at their moments at any speed."""

from __future__ import annotations

from pathlib import Path

from stage import EVERY_STEP, Stage

from deadpool.config import JobConfig
from deadpool.control.fork_client import SharedForkServer
from deadpool.workload.results import Results

SENT = 9
WHILE_SENT = f"at=wire step={SENT} node=n1"


def run_framework(
    script: Path,
    folder: Path,
    fork_server: SharedForkServer,
    faults: tuple[str, ...],
    arguments: list[str],
    gate: int | None,
    settings: dict[str, object],
) -> tuple[Stage, Results]:
    """`gate`: a step in which rank 1 stands until its version is committed. For a version that is to be hit while it is
    sent, rank 1 stands in its step until the fault was seen."""
    config = JobConfig(nodes=2, spares=1, faults=faults, **{**EVERY_STEP, **settings}).checked()
    stands_at = gate if gate is not None else SENT if faults == (WHILE_SENT,) else None
    scene = f"wait@{stands_at}:1" if stands_at is not None else ""
    stage = Stage(config, "plain", scene, folder / "job", fork_server, script, arguments)

    def during(_: object) -> None:
        if gate is not None:
            stage.open_committed_gate(gate)
        elif stands_at is not None:
            stage.open_gate_after_fault(stands_at)

    return stage, stage.trial.run(during)
