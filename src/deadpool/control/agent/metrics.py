"""What an agent counts for metrics and for the `progress` event, and its endpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from deadpool.config.job_config import JobConfig
from deadpool.control.agent.data_plane import DataPlane
from deadpool.events.event import Event
from deadpool.protocol.agent.trainers.trainers import NodeTrainers, TrainerState
from deadpool.protocol.identity import Message
from deadpool.protocol.messages import Report, Stepped
from deadpool.views.metrics.endpoint import Endpoint, NodeCollector
from deadpool.views.metrics.folds import NodeFacts, StepTimes


class AgentMetrics:
    def __init__(
        self,
        node: str,
        settings: JobConfig,
        *,
        trainers: NodeTrainers,
        data: DataPlane,
        is_connected: Callable[[], bool],
    ) -> None:
        self._node, self._trainers, self._data, self._is_connected = node, trainers, data, is_connected
        self._step_times = StepTimes()
        self._event_counts: Counter[str] = Counter()
        self._endpoint = Endpoint(settings.metrics_host, settings.metrics_port)

    def start(self, report: Callable[[Event], None]) -> None:
        if (failure := self._endpoint.start(NodeCollector(self._facts))) is not None:
            report(Event(what="metrics_failed", detail={"reason": failure}))

    def close(self) -> None:
        self._endpoint.close()

    def on_trainer_message(self, name: str, message: Message) -> None:
        trainer = self._trainers.by_name.get(name)
        if isinstance(message, Stepped) and trainer is not None and trainer.state is TrainerState.SEATED:
            assert trainer.rank is not None
            self._step_times.add(trainer.rank, message.step_s)

    def on_report(self, report: Report) -> None:
        self._event_counts.update(str(record.get("what")) for record in report.records)

    def step_times(self) -> dict[str, object]:
        return self._step_times.facts()

    def _facts(self) -> NodeFacts:
        """Called by threads of the endpoint."""
        sent = self._data.sent
        return NodeFacts(
            node=self._node,
            connected=self._is_connected(),
            step_times=self._step_times.by_rank,
            trainers=Counter(str(each.state.value) for each in tuple(self._trainers.by_name.values())),
            arena_bytes=self._data.arena_bytes,
            sent_bytes=sent.total,
            sent_seconds=sent.seconds,
            events=dict(self._event_counts),
        )
