"""Runs in place of DeepSpeed's launcher, with the same arguments, in each process of a job.

    deadpool run --nodes 2 --spares 1 -m deadpool.integrations.deepspeed --hostfile hosts train.py ...

is `deepspeed --hostfile hosts train.py ...`. The launcher sets a few variables more than torchrun does, reads a file
`.deepspeed_env`, and passes `--local_rank`; all this is done here. Which machines there are DeadPool knows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepspeed.launcher import runner

from deadpool.integrations.deepspeed.refusals import DeepSpeedRefusal
from deadpool.integrations.deepspeed.relies_on import LIBRARIES
from deadpool.integrations.library_check import require_suitable
from deadpool.integrations.refusals import Refused
from deadpool.trainer.process.main import MODULE_FLAG, run_program


def main() -> None:
    require_suitable(LIBRARIES, force=False)
    command, environment = command_of(sys.argv[1:], os.environ)
    os.environ.update(environment)
    run_program(command)


def command_of(arguments: list[str], ranks: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """What each process runs, and what DeepSpeed's launcher would add to the variables of this rank."""
    args = runner.parse_args(arguments)
    _require_ours(args)
    _require_count(args, int(ranks["WORLD_SIZE"]))
    environment = {name: value for file in _environment_files() for name, value in _lines_of(file)}
    environment |= {
        "LOCAL_SIZE": ranks["LOCAL_WORLD_SIZE"],
        "CROSS_RANK": ranks["GROUP_RANK"],
        "CROSS_SIZE": ranks["GROUP_WORLD_SIZE"],
    }
    own = [] if args.no_local_rank else [f"--local_rank={ranks['LOCAL_RANK']}"]
    return [*([MODULE_FLAG] if args.module else []), args.user_script, *own, *args.user_args], environment


def _environment_files() -> list[Path]:
    files = [Path(folder) / runner.DEEPSPEED_ENVIRONMENT_NAME for folder in runner.DEEPSPEED_ENVIRONMENT_PATHS]
    return [file for file in files if file.is_file()]


def _lines_of(file: Path) -> list[tuple[str, str]]:
    lines = (line.strip() for line in file.read_text().splitlines())
    return [(name, value) for name, sign, value in (line.partition("=") for line in lines) if sign]


def _require_ours(args: Any) -> None:
    if args.autotuning:
        raise Refused(DeepSpeedRefusal.AUTOTUNING, "autotuning starts jobs of its own: leave it out")
    for name in ("elastic_training", "no_python", "bind_cores_to_rank"):
        if getattr(args, name, False):  # the first of them is gone in 0.19.8
            raise Refused(
                DeepSpeedRefusal.LAUNCHER, f"--{name} is for processes that DeepSpeed's launcher starts: leave it out"
            )


def _require_count(args: Any, rank_count: int) -> None:
    hosts = runner.fetch_hostfile(args.hostfile)
    if hosts:
        slots = runner.parse_inclusion_exclusion(hosts, args.include, args.exclude)
        counts = [len(each) for each in slots.values()][: args.num_nodes if args.num_nodes > 0 else None]
        told = sum(args.num_gpus if args.num_gpus > 0 else each for each in counts)
    else:
        told = args.num_gpus
    if told > 0 and told != rank_count:
        raise Refused(
            DeepSpeedRefusal.OTHER_COUNT,
            f"DeepSpeed's launcher was told of {told} processes, and this job has {rank_count} ranks: --nodes and "
            "--nproc-per-node of `deadpool run` say how many",
        )


if __name__ == "__main__":
    main()
