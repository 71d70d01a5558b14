"""Gates: where a process under test stops until its test lets it go on. For scripts; gated_job.py is the test's side.

E2E_GATES names the folder of the gates. A gate is `reached-NAME` when a process stands there, and holds its process id;
it is `open-NAME` when whoever comes may go on. Without a folder nobody stops: then the script is its own reference.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from deadpool_lab.workload.run import pause

_POLL_S = 0.005


def folder() -> Path | None:
    """Only where a test has made one."""
    named = os.environ.get("E2E_GATES")
    return Path(named) if named else None


def wait_at(name: int | str) -> None:
    gates = folder()
    if gates is None:
        return
    draft = gates / f"draft-{name}-{os.getpid()}"
    draft.write_text(str(os.getpid()))
    pause(f"before gate {name}")
    draft.rename(gates / f"reached-{name}")
    wait_for((gates / f"open-{name}").exists)
    pause(f"after gate {name}")


def wait_for(ready: Callable[[], bool]) -> None:
    """Without a limit: the test has one."""
    while not ready():
        time.sleep(_POLL_S)


def is_first_time(what: str) -> bool:
    """Whether this comes for the first time in the whole job, whichever process asks. Never without a folder."""
    gates = folder()
    if gates is None or (gates / what).exists():
        return False
    (gates / what).touch()
    return True
