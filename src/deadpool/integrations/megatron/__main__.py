"""Runs a script that calls `pretrain` of Megatron-LM, such as its pretrain_*.py, and protects that call.

deadpool run --nodes 2 --spares 1 -m deadpool.integrations.megatron --force SCRIPT ...
"""

from __future__ import annotations

import sys

from deadpool.integrations.megatron.pretrain import protect_pretrain
from deadpool.integrations.megatron.refusals import MegatronRefusal
from deadpool.integrations.refusals import Refused
from deadpool.trainer.process.main import run_program

_FORCE = "--force"


def main() -> None:
    force = sys.argv[1:2] == [_FORCE]
    command = sys.argv[1 + force :]
    if not command:
        raise Refused(MegatronRefusal.NO_PROGRAM, "the script is missing: give one that calls pretrain()")
    protect_pretrain(force=force)
    run_program(command)


if __name__ == "__main__":
    main()
