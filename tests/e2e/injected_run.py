"""One job that is hit again and again, at another moment each time, and the undisturbed run it is compared with.

Each injection kills a whole node by SIGKILL. Between two injections the job stands at a gate until everything is
committed and a new spare node is warm; then the next injection is ordered and the gate is opened. While a version is
awaited, to be hit when it is captured or sent, the job stands in that version's step: it cannot pass the moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sizes
from gated_job import EVERY_STEP
from unprotected import run_ranks

from deadpool.cli.job_client import ask
from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import Results
from deadpool_lab.chaos import gated
from deadpool_lab.chaos.gated import GATE_EVERY
from deadpool_lab.workload.run import WorkloadTrial, pause

SCRIPT = Path(gated.__file__)
SMALL = sizes.INJECTED
_OF_VERSIONS = ("capture", "wire")  # moments that no rank waits for


@dataclass(frozen=True, slots=True)
class Injection:
    """`moment` is a word of the fault injector, or `first`: in the backward of the first step ever."""

    moment: str
    position: int  # of the node that is hit


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionList:
    layout: str
    nodes: int
    per_node: int
    flags: tuple[str, ...]
    injections: tuple[Injection, ...]  # `first` can only be the first

    def gate(self, index: int) -> int:
        """The step before whose batch an injection is prepared; `first` falls before any gate."""
        return GATE_EVERY * (index + (self.injections[0].moment != "first"))

    @property
    def steps(self) -> int:
        return self.gate(len(self.injections)) + 1

    @property
    def arguments(self) -> list[str]:
        return ["--layout", self.layout, "--steps", str(self.steps), *SMALL, *self.flags]


@dataclass(slots=True)
class InjectedRun:
    wanted: InjectionList
    folder: Path
    fork_server: SharedForkServer
    trial: WorkloadTrial = field(init=False)
    hit: list[str] = field(default_factory=list)  # nodes, in the order of the injections
    _nodes: int = 0

    def __post_init__(self) -> None:
        gates = self.folder / "gates"
        gates.mkdir(parents=True)
        plan = self.wanted
        first = [injection for injection in plan.injections if injection.moment == "first"]
        config = JobConfig(
            nodes=plan.nodes,
            nproc_per_node=plan.per_node,
            spares=1,
            **EVERY_STEP,  # every version has to be there, and nobody hangs at a gate
            faults=tuple(f"at=backward step=0 node=n{injection.position}" for injection in first),
        )
        self._nodes = plan.nodes + 1
        self.trial = WorkloadTrial(
            config.checked(),
            plan.arguments,
            self.folder,
            script=SCRIPT,
            environment={"WORKLOAD_GATES": str(gates)},
            fork_server=self.fork_server,
        )

    def run(self) -> Results:
        return self.trial.run(lambda _: self._inject_all())

    def undisturbed(self) -> Results:
        out = self.folder / "undisturbed"
        world_size = self.wanted.nodes * self.wanted.per_node
        arguments = ["--out", str(out), *self.wanted.arguments]
        run_ranks(SCRIPT, arguments, world_size, self.folder / "console.log", {"WORKLOAD_GATES": "/nowhere"})
        return Results.read(out)

    def fell(self, index: int) -> bool:
        """Whether the node of this injection was lost, after one of its trainers had come to the moment."""
        injection, node = self.wanted.injections[index], self.hit[index]
        moment = ("backward", 0) if injection.moment == "first" else (injection.moment, self._waiting_step(index))
        pending_injections = [(event["at"], event.get("step")) for event in self._events("injected")]
        return moment in pending_injections and node in self._lost()

    def hangs(self) -> list[str]:
        """Nobody here hangs on purpose, so a fault without a lost rank is one that should not be."""
        return [str(event["reason"]) for event in self._events("fault") if not event["ranks"]]

    def _lost(self) -> set[str]:
        return {str(event["node"]) for event in self._events("fault")}

    def _events(self, what: str) -> list[dict[str, Any]]:
        return [event for event in self.trial.events() if event["what"] == what]

    def _inject_all(self) -> None:
        for index, injection in enumerate(self.wanted.injections):
            if injection.moment == "first":
                self.hit.append(f"n{injection.position}")
                self._add_spare()
            else:
                self._inject(index, injection)
        last = self.wanted.gate(len(self.wanted.injections))
        self._await_gate(last)
        self._open_gate(last)

    def _inject(self, index: int, injection: Injection) -> None:
        gate = self.wanted.gate(index)
        self._await_gate(gate)
        if injection.moment == "recovered":
            self._inject_after_recovery(gate, injection.position)
        else:
            self._await_readiness(gate)
            self._arm(self._node_at(injection.position), injection.moment, self._waiting_step(index))
            if injection.moment in _OF_VERSIONS:
                (self.folder / "gates" / f"gate-{gate + 1}").touch()
            self._open_gate(gate)
        self.trial.await_true(lambda: self.hit[-1] in self._lost(), f"the injection at {injection.moment}")
        self._open_gate(gate + 1)
        self._add_spare()

    def _inject_after_recovery(self, gate: int, position: int) -> None:
        """Another node is lost before. Where its loss takes the victim's copies along, the newcomer is the victim."""
        nodes = self.wanted.nodes
        if nodes < 4:
            self._await_readiness(gate)
            self._arm(self._spares()[0]["node"], "recovered", None)
            lost = self._node_at(position)
        else:
            self._add_spare()
            self._await_readiness(gate, spares=2)
            self._arm(self._node_at(position), "recovered", None)
            lost = self._node_at((position + nodes // 2) % nodes)
        self.trial.job.kill_node(lost)
        self._open_gate(gate)

    def _waiting_step(self, index: int) -> int | None:
        """At a gate all ranks stand in its step: what comes in a step's middle can be hit in the next one only."""
        moment, gate = self.wanted.injections[index].moment, self.wanted.gate(index)
        return {"recovered": None, "between": gate}.get(moment, gate + 1)

    def _arm(self, node: str, moment: str, step: int | None) -> None:
        self.hit.append(node)
        ask(self.trial.job.run_dir, "kill", node=node, at=moment, step=step)
        if node not in {spare["node"] for spare in self._spares()}:  # whose trainers are told when they are seated
            self.trial.await_true(lambda: self._know(node, moment), f"{node} to know of {moment}")

    def _know(self, node: str, moment: str) -> bool:
        """Every trainer of the node; `wire` is hit by its agent."""
        told = [each for each in self._events("injection_set") if each["at"] == moment]
        by = [each["node"] if moment == "wire" else each["trainer"].split(".")[0] for each in told]
        return by.count(node) >= (1 if moment == "wire" else self.wanted.per_node)

    def _add_spare(self) -> None:
        self.trial.job.add_node(f"n{self._nodes}", spare=True)
        self._nodes += 1

    def _await_gate(self, step: int) -> None:
        reached = self.folder / "gates" / f"reached-{step}"
        self.trial.await_true(reached.exists, f"the gate of step {step}")

    def _open_gate(self, step: int) -> None:
        pause(f"opening gate {step}")
        (self.folder / "gates" / f"open-{step}").touch()

    def _await_readiness(self, version: int, spares: int = 1) -> None:
        """What an injection finds must not depend on how fast copies travel or processes start."""

        def ready() -> bool:
            status, warm = self._status(), [spare for spare in self._spares() if _is_warm(spare)]
            committed = status["watermark"] is not None and status["watermark"] >= version
            return committed and status["protected"] and len(warm) >= spares

        self.trial.await_true(ready, f"version {version} and {spares} warm spares")

    def _node_at(self, position: int) -> str:
        return next(str(node["node"]) for node in self._status()["nodes"] if node["position"] == position)

    def _spares(self) -> list[dict[str, Any]]:
        return [node for node in self._status()["nodes"] if node["role"] == "spare"]

    def _status(self) -> dict[str, Any]:
        return ask(self.trial.job.run_dir, "status")


def _is_warm(node: dict[str, Any]) -> bool:
    return bool(node["trainers"]) and all(trainer["state"] == "parked" for trainer in node["trainers"])
