"""Two adapters note how they are called, each process in a file of its own. A protected object counts the steps.

With --dies, the first process that is seated without having been a rank before ends itself there, once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist
from small_job import inputs_of, make_model, make_parser, reduce_over, train
from torch import Tensor

import deadpool


class Counter:
    def __init__(self) -> None:
        self.steps = 0

    def next_inputs(self, step: int) -> Tensor:
        self.steps += 1
        return inputs_of(step, pool.rank)

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]


class Recorder(deadpool.Adapter):
    def __init__(self, name: str, dry_steps: int) -> None:
        self.name, self._dry_steps = name, dry_steps

    @property
    def dry_steps(self) -> int:
        return self._dry_steps

    def _note(self, text: str) -> None:
        with (args.out / f"calls-{pool.rank}-{os.getpid()}.txt").open("a") as file:
            print(f"{self.name} {text}", file=file, flush=True)

    def reset(self) -> None:
        self._note("reset")

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        self._note("begins to rehearse")
        yield
        self._note("has rehearsed")

    def seated(self, resume_step: int) -> None:
        self._note(f"seated at {resume_step} after {counter.steps} steps")
        marker = Path(os.environ["E2E_GATES"]) / "died"
        if args.dies and dist.get_rank() == 0 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def resumed(self) -> None:
        self._note("resumed")


parser = make_parser()
parser.add_argument("--dies", action="store_true")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)
pool = deadpool.join(backend="gloo")
counter = Counter()
train(
    pool,
    make_model(),
    args.out,
    reduce=lambda model, step: reduce_over(None, model),
    following=counter.next_inputs,
    counter=counter,
    adapters=[Recorder("one", 1), Recorder("two", 2)],
)
