"""The processes that start all scripts of a run of trials. Each has imported once what it forks."""

from __future__ import annotations

import threading

from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool_lab.strangers.references import ReferenceRuns


class SharedProcesses:
    """`fork_server` forks trainers, agents and coordinators, `references` ranks without DeadPool."""

    def __init__(self) -> None:
        self.stopping = threading.Event()  # running scripts end soon, and no other one is begun
        self.fork_server = SharedForkServer(forks_commands=True)
        self.references = ReferenceRuns(self.stopping)

    def close(self) -> None:
        self.references.close()
        self.fork_server.close()
