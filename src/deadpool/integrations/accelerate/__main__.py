"""Runs in place of `accelerate launch`, with the same arguments and configuration file, in each process of a job.

`accelerate launch` turns its configuration into environment variables, and starts processes. DeadPool has started this
one, so only the variables are left to set. What has to be there before torch is loaded, such as the number of threads,
is the business of `deadpool run`.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env

from deadpool.integrations.accelerate.refusals import AccelerateRefusal
from deadpool.integrations.accelerate.relies_on import LIBRARIES
from deadpool.integrations.library_check import require_suitable
from deadpool.integrations.refusals import Refused
from deadpool.trainer.process.main import MODULE_FLAG, run_program

_OURS = ("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "KMP_AFFINITY", "KMP_BLOCKTIME")
_OTHER_LAUNCHERS = ("tpu", "use_deepspeed", "use_megatron_lm", "mpirun_hostfile", "no_python")


def main() -> None:
    require_suitable(LIBRARIES, force=False)
    args, environment = environment_of(sys.argv[1:], int(os.environ.get("WORLD_SIZE", "1")))
    os.environ.update(environment)
    run_program([*([MODULE_FLAG] if args.module else []), args.training_script, *args.training_script_args])


def environment_of(arguments: list[str], rank_count: int) -> tuple[Any, dict[str, str]]:
    """The parsed arguments of `accelerate launch`, and what it would add to the environment of each process."""
    parsed = launch_command_parser().parse_args(arguments)
    says_count = parsed.num_processes is not None
    args, defaults, _ = _validate_launch_command(parsed)
    _require_ours(args, defaults)
    if (says_count or defaults is not None) and int(args.num_processes) != rank_count:
        raise Refused(
            AccelerateRefusal.OTHER_COUNT,
            f"accelerate launch was told num_processes {args.num_processes}, and this job has {rank_count} ranks: "
            "--nodes and --nproc-per-node of `deadpool run` say how many",
        )
    args.num_machines, args.main_process_port = 1, 0  # the processes exist: no port is looked for
    before = dict(os.environ)
    is_distributed = (args.multi_gpu or args.use_fsdp) and not args.cpu
    if not is_distributed:
        args.num_processes = 1
    made = prepare_multi_gpu_env(args) if is_distributed else prepare_simple_launcher_cmd_env(args)[1]
    return args, {name: each for name, each in made.items() if before.get(name) != each and name not in _OURS}


def _require_ours(args: Any, defaults: Any) -> None:
    found = [name for name in _OTHER_LAUNCHERS if getattr(args, name, None)]
    if defaults is not None and defaults.compute_environment != "LOCAL_MACHINE":
        found.append(str(defaults.compute_environment))
    for name in found:
        raise Refused(
            AccelerateRefusal.LAUNCHER,
            f"accelerate launch with {name} starts processes that are not those of `deadpool run`: leave it out",
        )
    if args.gpu_ids not in (None, "all"):
        raise Refused(
            AccelerateRefusal.GPU_IDS,
            "gpu_ids comes too late for a process that has a device: set CUDA_VISIBLE_DEVICES for `deadpool run`",
        )


if __name__ == "__main__":
    main()
