"""What is looked at before a job is submitted: only what the login node shares with the nodes of the job.

Those are the file systems and the installation. Memory, GPUs and limits of a login node are others than theirs.
"""

from __future__ import annotations

from pathlib import Path

from deadpool.clusters.doctor.finding import Kind
from deadpool.clusters.doctor.preflight import preflight
from deadpool.errors import ConfigError

_SHARED = ("versions", "run folder")


def check_before_submission(run_dir: Path) -> None:
    """Raises ConfigError with all that would stop the job."""
    report = preflight(run_dir=run_dir)
    bad = [each for each in report.findings if each.kind is Kind.FINDING and each.check in _SHARED]
    if bad:
        found = "; ".join(f"{each.what} ({each.do})" for each in bad)
        raise ConfigError(f"the job was not submitted: {found}. --no-preflight submits it all the same")
