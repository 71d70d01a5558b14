"""The processes that start all scripts of a campaign. Each has imported once what it forks."""

from __future__ import annotations

import threading

from deadpool.chaos.strangers.forked_job import ForkClient
from deadpool.chaos.strangers.references import ReferenceRuns
from deadpool.control.fork_client import SharedForkServer


class SharedProcesses:
    """`fork_server` forks trainers, `fork_client` agents and coordinators, `references` ranks without DeadPool."""

    def __init__(self) -> None:
        self.stopping = threading.Event()  # running scripts end soon, and no other one is begun
        self.fork_server, self.fork_client, self.references = (
            SharedForkServer(),
            ForkClient(),
            ReferenceRuns(self.stopping),
        )

    def close(self) -> None:
        self.references.close()
        self.fork_client.close()
        self.fork_server.close()
