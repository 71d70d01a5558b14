"""Measures the coordinator's share of a recovery apart from thousands of simulated agents that fill the same process.

    python benchmarks/coordinator_replay.py record --nodes 16384 --file out/messages.pickle
    python benchmarks/coordinator_replay.py replay --file out/messages.pickle

`record` runs the job of `deadpool lab sim --nodes` (fewer steps, no heartbeats) and writes down what the coordinator
heard. `replay` feeds the same bytes to a coordinator alone, in a fresh process, and prints each of three losses: CPU
seconds to the last plan and to the last Go, the whole recovery, and bytes out. Recorded messages fit every version of
the code that sends the same ones.
"""

from __future__ import annotations

import argparse
import gc
import pickle
import time
from pathlib import Path
from typing import Any

from deadpool.control.loops import collect_seldom
from deadpool.protocol.inputs import FromAgent, LinkLost
from deadpool.wire.codec import decode, encode
from deadpool_lab.sim.scale.loss import MeteredCoordinator, ScriptedJob, Usage

PER_NODE = 8
LOSSES = 3
Heard = tuple[str, bytes | None]
"""Node and message; None: its link was lost."""


class Recorder:
    """Writes down, stretch by stretch, what the coordinator of a scripted job hears."""

    def __init__(self, job: ScriptedJob) -> None:
        self.stretches: list[tuple[str, list[Heard]]] = []
        self._step, job.coordinator.leadership.step = job.coordinator.leadership.step, self._note  # type: ignore[method-assign]

    def begin(self, name: str) -> None:
        self.stretches.append((name, []))

    def _note(self, input: Any, *, now: float) -> Any:
        data = encode(input.message) if isinstance(input, FromAgent) else None
        self.stretches[-1][1].append((input.node, data))
        return self._step(input, now=now)


def record(nodes: int, file: Path) -> None:
    job = ScriptedJob(nodes, PER_NODE, encode=encode, decode=decode)
    recorder = Recorder(job)
    recorder.begin("start")
    job.start()
    for number in range(1, LOSSES + 1):
        recorder.begin("step")
        job.step(number)
        recorder.begin("loss")
        job.lose_node(f"n{nodes // 3 + 2 * number}")
    file.write_bytes(pickle.dumps((nodes, recorder.stretches)))


def replay(file: Path) -> None:
    nodes, stretches = pickle.loads(file.read_bytes())
    gc.freeze()
    coordinator = ScriptedJob(nodes, PER_NODE, encode=encode, decode=decode).coordinator
    coordinator._deliver = lambda node, term, message: None  # the agents have answered already
    for name, heard in stretches:
        usage = coordinator.start_stretch()
        for node, data in heard:
            _feed(coordinator, node, data)
        if name == "loss":
            print(_line(nodes, usage), flush=True)


def _feed(coordinator: MeteredCoordinator, node: str, data: bytes | None) -> None:
    if data is None:
        coordinator.feed(LinkLost(node=node, reason="connection reset"))
        return
    began = time.process_time()
    message = decode(data)
    effects = coordinator.leadership.step(FromAgent(node=node, message=message), now=coordinator.now)
    coordinator.leadership.deadline()
    coordinator._answer(effects, began, type(message).__name__)


def _line(nodes: int, usage: Usage) -> str:
    by_type = ", ".join(f"{name} {seconds:.3f}" for name, seconds in usage.handling_s.items())
    times = f"last plan {usage.plans_done_s:.3f}, last Go {usage.gos_done_s:.3f}, all {usage.cpu_s:.3f} s of CPU"
    return f"{nodes} nodes: {times}; {usage.bytes_out.total()} bytes out; {by_type}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "replay"])
    parser.add_argument("--nodes", type=int, default=16384)
    parser.add_argument("--file", type=Path, required=True)
    arguments = parser.parse_args()
    collect_seldom()  # as the real coordinator does
    if arguments.what == "record":
        record(arguments.nodes, arguments.file)
    else:
        replay(arguments.file)


if __name__ == "__main__":
    main()
