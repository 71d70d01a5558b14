"""The processes that all scripts of a campaign are started by: each has imported what it forks, once."""

from __future__ import annotations

import threading

from deadpool.chaos.strangers.forked_job import ForkClient
from deadpool.chaos.strangers.references import ReferenceRuns
from deadpool.control.fork_client import SharedForkServer


class SharedProcesses:
    """Trainers come from the fork_server, agents and coordinators from the fork server, other ranks from torchrun."""

    def __init__(self) -> None:
        self.stopping = threading.Event()  # what runs ends soon, and nothing more is begun
        self.fork_server, self.fork_client, self.references = (
            SharedForkServer(),
            ForkClient(),
            ReferenceRuns(self.stopping),
        )

    def close(self) -> None:
        self.references.close()
        self.fork_client.close()
        self.fork_server.close()
