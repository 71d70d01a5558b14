"""The end of a job that cannot go on: what is left of it goes to disk before memory is given back. Which copies that
are is the planner's to say, where they are written to is the agents'."""

from __future__ import annotations

from collections.abc import Iterable

from deadpool.protocol.coordinator.outbox import Outbox
from deadpool.protocol.coordinator.planner import Left
from deadpool.protocol.identity import Version
from deadpool.protocol.messages import Durable, Salvage, Salvaged


class Salvaging:
    def __init__(self, out: Outbox) -> None:
        self._out = out
        self._pending: set[str] = set()
        self._folders: dict[str, str] = {}
        self._ranks: set[int] = set()
        self._failures: list[str] = []
        self._reason = ""
        self._version: Version | None = None
        self.durable: Durable | None = None  # the newest that the script has told of

    def note_durable(self, told: Durable) -> None:
        if self.durable is None or told.step >= self.durable.step:
            self.durable = told

    def begin(self, reason: str, left: Iterable[Left]) -> bool:
        """Whether there is anything to wait for."""
        self._reason = reason
        parts: dict[str, list[int]] = {}
        for each in left:
            parts.setdefault(each.node, []).append(each.rank)
            self._version = each.version
        for node, ranks in parts.items():
            assert self._version is not None
            order = Salvage(generation=self._out.generation, version=self._version, ranks=tuple(ranks))
            self._out.send(node, order)
            self._pending.add(node)
        if parts:
            self._out.emit("salvaging", step=self._version.number if self._version else None, nodes=list(parts))
        return bool(parts)

    def hear(self, node: str, salvaged: Salvaged) -> None:
        self._pending.discard(node)
        if salvaged.ranks:
            self._folders[node] = salvaged.folder
            self._ranks.update(salvaged.ranks)
        if salvaged.failure:
            self._failures.append(f"node {node}: {salvaged.failure}")
        failure = salvaged.failure or None
        self._out.emit("salvaged", node=node, ranks=list(salvaged.ranks), folder=salvaged.folder, failure=failure)

    def forget(self, node: str) -> None:
        if node in self._pending:
            self._pending.discard(node)
            self._failures.append(f"node {node} was lost")

    @property
    def is_over(self) -> bool:
        return not self._pending

    def last_word(self) -> str:
        return "; ".join([self._reason, *self._kept(), self.restart()])

    def _kept(self) -> list[str]:
        late = [f"node {node} did not write in time" for node in sorted(self._pending)]
        failures = [f"not written: {', '.join(self._failures + late)}"] if self._failures or late else []
        if not self._ranks or self._version is None:
            return failures
        ranks = ", ".join(map(str, sorted(self._ranks)))
        folders = ", ".join(f"{folder} on {node}" for node, folder in sorted(self._folders.items()))
        kept = f"version {self._version.number} of rank {ranks} is kept in {folders} (see: deadpool salvage)"
        return [kept, *failures]

    def restart(self) -> str:
        if self.durable is None:
            return "restart from your last durable checkpoint (none was told of with job.durable(step, path))"
        return f"restart from the durable checkpoint of step {self.durable.step}: {self.durable.path}"
