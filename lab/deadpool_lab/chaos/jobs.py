"""The two jobs that faults are injected into: small, so that steps are short, and able to lose two nodes at once."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from deadpool.config.environment import PREFIX
from deadpool.config.job_config import JobConfig
from deadpool_lab.chaos.plan import Timing

SCRIPT = Path(__file__).with_name("script.py")
CRASH_SIGNAL = signal.SIGUSR1
PACE_VARIABLE = PREFIX + "CHAOS_PACE_S"
"""Set for the training script: how long a step pauses."""

_STEPS = 1_000_000  # the job is stopped when it has recovered from all faults
_MODEL = ["--layers", "2", "--width", "64", "--sequence", "32", "--vocabulary", "256"]
_NOISE = ["--dropout", "0.1", "--clip", "1.0"]  # equal losses then prove that the state of the RNG was restored too


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosJob:
    name: str
    nodes: int
    nproc_per_node: int
    spares: int
    standby_coordinators: int

    @property
    def losses_at_once(self) -> int:
        """Nodes that may be lost before copies are complete again: each rank is on three nodes, and coordinators that
        need a majority keep more than half of the nodes."""
        return 2

    def config(self, host: str, timing: Timing, health_root: str = "/") -> JobConfig:
        return JobConfig(
            nodes=self.nodes,
            nproc_per_node=self.nproc_per_node,
            spares=self.spares,
            standby_coordinators=self.standby_coordinators,
            host=host,
            health_root=health_root,
            log_format="json",  # each event is said, too
            **timing.settings,
        ).checked()

    def undisturbed(self) -> JobConfig:
        return JobConfig(nodes=self.nodes, nproc_per_node=self.nproc_per_node, capture_every=1000).checked()

    def arguments(self, stop: Path) -> list[str]:
        return ["--layout", self.name, "--steps", str(_STEPS), "--stop", str(stop), "--journal", *_MODEL, *_NOISE]


JOBS = {
    "fsdp2": ChaosJob(name="fsdp2", nodes=5, nproc_per_node=1, spares=2, standby_coordinators=1),
    "3d": ChaosJob(name="3d", nodes=4, nproc_per_node=2, spares=1, standby_coordinators=0),
}
"""The first job has a standby coordinator; in the second one the only coordinator is started again."""
