"""What a fault is, and what it may look at and touch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from deadpool.chaos.jobs import HANG_TIMEOUT_S, NODE_TIMEOUT_S
from deadpool.chaos.network import Network
from deadpool.chaos.plan import Intent
from deadpool.chaos.processes import JobProcesses
from deadpool.chaos.status_view import SeatedTrainer, StatusView, StepProgress
from deadpool.control.run_dir import RunDir

T = TypeVar("T")

UNNOTICED_S = NODE_TIMEOUT_S / 4
NOTICED_S = NODE_TIMEOUT_S * 2
HANGS_S = HANG_TIMEOUT_S * 2


@dataclass(slots=True)
class Scene:
    """`view` is replaced as it is renewed."""

    processes: JobProcesses
    network: Network
    steps: StepProgress
    run_dir: RunDir
    view: StatusView


class Fault(ABC):
    kind: ClassVar[str]
    weight: ClassVar[int] = 1
    ends_with: ClassVar[str | None] = None  # the event that ends it; None: the first step done after it

    def __init__(self, intent: Intent) -> None:
        self.intent = intent
        self.target = ""
        self.endangered: frozenset[str] = frozenset()  # nodes whose copies may be lost by it
        self.lasts_s = 0.0

    @property
    def described(self) -> str:
        """Whom it hits, in words."""
        return self.target

    @classmethod
    def is_possible(cls, network: Network) -> bool:
        return True

    @abstractmethod
    def aim(self, scene: Scene) -> bool:
        """Sets target, endangered and lasts_s. False: there is nobody to inject at the moment."""

    @abstractmethod
    def inject(self, scene: Scene) -> None: ...

    def end(self, scene: Scene) -> None:
        """After lasts_s, if that is not 0; also when everything ends before."""
        return

    def is_over(self, scene: Scene) -> bool:
        """Besides that the job has trained on: what else there is to see."""
        return True

    def pick(self, choices: Sequence[T]) -> T:
        return choices[int(self.intent.pick * len(choices))]

    def pick_other(self, choices: Sequence[T]) -> T:
        return choices[int(self.intent.again * len(choices))]


class OnNode(Fault):
    """Injections a node that holds ranks."""

    def aim(self, scene: Scene) -> bool:
        nodes = [node for node in scene.view.seats if scene.processes.is_alive(node)]
        if not nodes:
            return False
        self.target = self.pick(nodes)
        self.endangered = frozenset([self.target])
        return True


class OnTrainer(Fault):
    """Injections one trainer. Its node keeps the copies: nothing is in danger."""

    trainer: SeatedTrainer

    def aim(self, scene: Scene) -> bool:
        trainers = [
            trainer
            for node, crew in sorted(scene.view.trainers.items())
            for trainer in crew
            if scene.processes.is_part_of(node, trainer.pid)
        ]
        if not trainers:
            return False
        self.trainer = self.pick(trainers)
        self.target = f"rank {self.trainer.rank} ({self.trainer.name})"
        return True
