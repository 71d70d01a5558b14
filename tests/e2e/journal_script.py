"""Data parallelism by hand that logs every step of every rank, in a dry step too, for `deadpool run` and torchrun.

--sink says where to; `gated` is the run folder's own file, behind a gate: E2E_SINK holds WORD@STEP:RANK. `before`: the
thread that delivers stops before it writes that step; `after`: it stops when the step is on the disk and nobody knows.
It says so by a file that holds its process id, and goes on when the test has opened the gate. --final has a line
written for each step in job.on_final, with what the step was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gates
import small_job
import torch
import torch.distributed as dist
from acts import act

import deadpool
from deadpool.journal import Entry, Jsonl, Run, TensorBoard, WandB
from deadpool.journal.jsonl import default_sink


class GatedSink(Jsonl):
    def open(self, run: Run) -> None:
        self._rank = run.rank
        super().open(run)

    def write(self, entries: Sequence[Entry]) -> int | None:
        self._pass_gate("before", entries)
        doubtful = super().write(entries)
        self._pass_gate("after", entries)
        return doubtful

    def _pass_gate(self, word: str, entries: Sequence[Entry]) -> None:
        when, step, rank = os.environ["E2E_SINK"].replace("@", ":").split(":")
        if (word, self._rank) == (when, int(rank)) and entries[-1].step >= int(step):
            gates.wait_at("sink")


class FullDisk(Jsonl):
    """Nothing can be written until the test makes room."""

    def write(self, entries: Sequence[Entry]) -> int | None:
        if not (Path(os.environ["E2E_GATES"]) / "room").exists():
            raise OSError(28, "No space left on device")
        return super().write(entries)


def sinks(name: str, out: Path, rank: int) -> list[Any]:
    quiet = {"silent": True, "x_disable_stats": True, "x_disable_meta": True, "x_disable_machine_info": True}
    made = {
        "default": list,
        "gated": lambda: [GatedSink(default_sink(rank).place)],
        "full": lambda: [FullDisk(default_sink(rank).place)],
        "shared": lambda: [Jsonl(out / "all.jsonl")],
        "tensorboard": lambda: [TensorBoard(out / "tensorboard" / f"rank{rank}")],
        "wandb": lambda: [WandB("deadpool", id=f"run{rank}", dir=out / "wandb", mode="offline", settings=quiet)],
    }
    return made[name]()


def main() -> None:
    parser = small_job.make_parser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--sink", default="default")
    parser.add_argument("--final", action="store_true")
    parser.add_argument("--stop", type=int, help="leave the loop before this step")
    args = parser.parse_args()
    pool = deadpool.join(backend="gloo")
    model = small_job.make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1 + pool.rank)
    job = pool.protect(model=model, optimizer=optimizer)
    args.out.mkdir(parents=True, exist_ok=True)
    if not args.final:
        job.log_to(*sinks(args.sink, args.out, pool.rank))

    def finally_note(step: Any, loss: torch.Tensor) -> None:
        note = {"step": int(step), "dry": step.dry, "loss": loss.item().hex(), "pid": os.getpid()}
        with (args.out / f"final-rank{pool.rank}.jsonl").open("a") as final:
            print(json.dumps(note), file=final)

    with (args.out / f"rank{pool.rank}.jsonl").open("a") as file:
        for step in job.steps(args.steps):
            if step.number == args.stop and not step.dry:
                break
            with step:
                if not step.dry:
                    act(step.number)
                loss = model(small_job.inputs_of(step.number, pool.rank)).square().mean()
                loss.backward()
                small_job.reduce_over(None, model)
                optimizer.step()
                optimizer.zero_grad()
                if args.final:
                    job.on_final(step, lambda step=step, loss=loss: finally_note(step, loss))
                else:
                    job.log(step, loss=loss, hex=loss.item().hex())
                    job.log(step, nested={"pid": os.getpid(), "rank": pool.rank})
                if not step.dry:
                    print(
                        json.dumps({"step": step.number, "loss": loss.item().hex(), "ended": 0.0, "cpu_s": 0.0}),
                        file=file,
                        flush=True,
                    )
        print(json.dumps({"digest": job.digest()}), file=file)
    dist.destroy_process_group()


if __name__ == "__main__":
    act(-1)
    main()
