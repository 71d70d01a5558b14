"""A job whose loop is a library's own, and what is needed so that its faults come at their moments at any speed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

from gated_job import EVERY_STEP, GatedJob

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import Results
from deadpool.journal.jsonl import JournalReader, newest_runs

SENT = 9
WHILE_SENT = f"at=wire step={SENT} node=n1"
AUDITED_STEPS = 10
AFTER_AUDIT = ("at=backward step=7 node=n1", "at=forward step=7 rank=LAST", "at=optimizer step=7 node=n1")
"""An audit is over by then. It has ended all ranks of the first node, and with them the orders of their faults."""

PLAYED = "audit: this rank ends on purpose"
CUT_SHORT = "a recovery was cut short"
"""Where a coordinator has stood still for seconds another one took over, and may play a recovery of its own."""


def faults_after_audit(layouts: Iterable[str]) -> list[tuple[str, str]]:
    """Each layout with one fault, of one moment after the other."""
    return list(zip(layouts, itertools.cycle(AFTER_AUDIT), strict=False))


def run_framework(
    script: Path,
    folder: Path,
    fork_server: SharedForkServer,
    faults: tuple[str, ...],
    arguments: list[str],
    gate: int | None,
    settings: dict[str, object],
) -> tuple[GatedJob, Results]:
    """`gate`: a step in which rank 1 stands until its version is committed. For a version that is to be hit while it is
    sent, rank 1 stands in its step until the fault was seen."""
    config = JobConfig(nodes=2, spares=1, faults=faults, **{**EVERY_STEP, **settings}).checked()
    stands_at = gate if gate is not None else SENT if faults == (WHILE_SENT,) else None
    acts = f"wait@{stands_at}:1" if stands_at is not None else ""
    gated = GatedJob(config, "plain", acts, folder / "job", fork_server, script, arguments)

    def during(_: object) -> None:
        if gate is not None:
            gated.open_committed_gate(gate)
        elif stands_at is not None:
            gated.open_gate_after_fault(stands_at)

    return gated, gated.trial.run(during)


def journal_of(gated: GatedJob) -> dict[int, list[tuple[int, dict[str, object]]]]:
    """Steps and values of each rank, in the order in which they were written."""
    found: dict[int, list[tuple[int, dict[str, object]]]] = {}
    for line in newest_runs(JournalReader([gated.trial.job.run_dir.journal]).read()):
        found.setdefault(line.rank, []).append((line.step, dict(line.values)))
    return found


def run_audited(
    script: Path, folder: Path, fork_server: SharedForkServer, fault: str, arguments: list[str], **settings: object
) -> tuple[Results, str]:
    """A job in which a recovery is played, and that has a fault afterwards. Also the verdict: "exact", or what differs.
    A job without a verdict fails."""
    wanted = {"nodes": 2, "spares": 1, "nproc_per_node": 1, "rehearse_recovery": True, **EVERY_STEP, **settings}
    world_size = wanted["nodes"] * wanted["nproc_per_node"]
    config = JobConfig(**wanted, faults=(fault.replace("LAST", str(world_size - 1)),)).checked()
    audited = Path(__file__).with_name("audited_script.py")
    gated = GatedJob(config, "plain", "", folder / "job", fork_server, audited, ["--audited", str(script), *arguments])
    results = gated.trial.run()
    reasons = [event["reason"] for event in gated.events("fault")]
    assert reasons[0] == PLAYED and len([reason for reason in reasons if reason not in (PLAYED, CUT_SHORT)]) == 1
    assert {each["ranks"] for each in gated.events("audit_passed")} <= {world_size}
    differs = [each["part"] for each in gated.events("audit_differs")]
    assert differs or gated.events("audit_passed")
    return results, differs[0] if differs else "exact"
