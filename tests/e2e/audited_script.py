"""Another script of a test, whose ranks stand until the audit of exactness has come: few short steps are over before.

    audited_script.py --audited SCRIPT, and what SCRIPT takes

Only in the job's first generation. So every rank tells its digests at the same version, and the rank that is named ends
in the step behind it.
"""

from __future__ import annotations

import argparse
import runpy
import sys

from deadpool.protocol.messages import Audit
from deadpool.trainer import job as jobs

STANDS_AT = 3  # every rank has completed so many steps, which is more than an audit waits for


class PatientRank(jobs.AuditedRank):
    def enter_step(self) -> None:
        session, number = self._job.session, self._job.number
        if number >= STANDS_AT and session.core.generation.is_founding:
            session.wait(lambda: session.core.is_aborted or lets_pass(session.audit, number) or None)
        super().enter_step()


def lets_pass(order: Audit | None, number: int) -> bool:
    """Up to the version that is named, and beyond it once a rank is to end."""
    return order is not None and (order.ends or number < order.number)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--audited", required=True)
    parsed, rest = parser.parse_known_args()
    jobs.AuditedRank = PatientRank  # type: ignore[misc]
    sys.argv = [parsed.audited, *rest]
    runpy.run_path(parsed.audited, run_name="__main__")
