"""What a fault is, and what it can see and change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from deadpool.control.launch.run_dir import RunDir
from deadpool_lab.chaos.plan import Intent, Timing
from deadpool_lab.chaos.status_view import SeatedTrainer, StatusView, StepProgress
from deadpool_lab.chaos.surroundings.disk import Disk
from deadpool_lab.chaos.surroundings.health_files import HealthFiles
from deadpool_lab.chaos.surroundings.network import Network
from deadpool_lab.chaos.surroundings.processes import JobProcesses, Terminal

T = TypeVar("T")


@dataclass(slots=True)
class FaultContext:
    """What a fault works on. `view` is replaced by each newer status."""

    processes: JobProcesses
    network: Network
    steps: StepProgress
    run_dir: RunDir
    view: StatusView
    timing: Timing
    health: HealthFiles | None = None  # where agents read the health of their nodes, if the run writes it
    disk: Disk | None = None  # of the run folder
    terminal: Terminal | None = None  # that the processes of the job print to


class Fault(ABC):
    kind: ClassVar[str]
    weight: ClassVar[int] = 1
    holders: ClassVar[int] = 1  # so many a rank has to have, else nothing could recover from it
    ends_with: ClassVar[str | None] = (
        None  # the event that ends its recovery; None: the first step that is completed after it
    )

    in_background: ClassVar[bool] = False  # it endangers no rank: others come meanwhile as if it were not there

    def __init__(self, intent: Intent) -> None:
        self.intent = intent
        self.target = ""
        self.endangered: frozenset[str] = frozenset()  # nodes whose copies it may destroy
        self.lasts_s = 0.0
        self.held = False  # it ends before that, when the job trains without what it hit
        self.problem: str | None = None  # what it brought to light, besides a job that does not recover

    @property
    def described(self) -> str:
        """What it hits, in words."""
        return self.target

    @classmethod
    def is_possible(cls, network: Network, disk: Disk) -> bool:
        return True

    @abstractmethod
    def aim(self, context: FaultContext) -> bool:
        """Sets target, endangered and lasts_s. Returns False if there is no target at the moment."""

    @abstractmethod
    def inject(self, context: FaultContext) -> None: ...

    def end(self, context: FaultContext) -> None:
        """Called after lasts_s if that is not 0, also when the run ends before."""
        return

    def is_over(self, context: FaultContext) -> bool:
        """What else has to be true, besides that the job trains."""
        return True

    def last(self, timing: Timing, long_s: float) -> None:
        """A fault that lasts, for longer than its detection takes or not."""
        self.held = timing.one_by_one
        self.lasts_s = timing.hangs_s if self.held else long_s if self.intent.long else timing.unnoticed_s

    def pick(self, choices: Sequence[T]) -> T:
        return choices[int(self.intent.pick * len(choices))]

    def pick_other(self, choices: Sequence[T]) -> T:
        return choices[int(self.intent.again * len(choices))]


class OnNode(Fault):
    """Hits a node that holds ranks."""

    def aim(self, context: FaultContext) -> bool:
        nodes = [node for node in context.view.seats if context.processes.is_alive(node)]
        if not nodes:
            return False
        self.target = self.pick(nodes)
        self.endangered = frozenset([self.target])
        return True


class OnTrainer(Fault):
    """Hits one trainer. Its node keeps the copies, so none is in danger."""

    trainer: SeatedTrainer

    def aim(self, context: FaultContext) -> bool:
        trainers = [
            trainer
            for node, seated in sorted(context.view.trainers.items())
            for trainer in seated
            if context.processes.is_part_of(node, trainer.pid)
        ]
        if not trainers:
            return False
        self.trainer = self.pick(trainers)
        self.target = f"rank {self.trainer.rank} ({self.trainer.name})"
        return True
