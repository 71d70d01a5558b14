"""The harness of the frameworks' audited cells: its verdicts tell a script that is not exact from one that is."""

from __future__ import annotations

from pathlib import Path

import pytest
from framework_run import AFTER_AUDIT, run_audited

SCRIPT = Path(__file__).with_name("audit_script.py")


@pytest.mark.thorough
@pytest.mark.parametrize(("arguments", "is_exact"), [(["--protected"], True), ([], False)])
def test_verdict_is_that_of_the_script(tmp_path, fork_server, arguments, is_exact):
    _, verdict = run_audited(SCRIPT, tmp_path, fork_server, AFTER_AUDIT[0], arguments)
    assert (verdict == "exact") == is_exact, verdict
