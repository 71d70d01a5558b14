"""Another script of a test, whose ranks stand until the audit of exactness has come: few short steps are over before.

    audited_script.py --audited SCRIPT, and what SCRIPT takes

So every rank tells its digests at the same version, the rank that is named ends in the step behind it, and no fault
comes before the verdict.
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
        may_go_on = begins_audit if session.core.generation.is_founding else has_verdict
        if number >= STANDS_AT:
            session.wait(lambda: session.core.is_aborted or may_go_on(session.audit, number) or None)
        super().enter_step()


def begins_audit(order: Audit | None, number: int) -> bool:
    """Up to the version that is named, and beyond it once a rank is to end."""
    return order is not None and (order.ends or number < order.number)


def has_verdict(order: Audit | None, number: int) -> bool:
    """Or the version that is compared was not computed again yet."""
    return order is None or number < order.number


if __name__ == "__main__":
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--audited", required=True)
    parsed, rest = parser.parse_known_args()
    jobs.AuditedRank = PatientRank  # type: ignore[misc]
    sys.argv = [parsed.audited, *rest]
    runpy.run_path(parsed.audited, run_name="__main__")
