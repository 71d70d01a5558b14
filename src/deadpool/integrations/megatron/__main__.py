"""Runs a script that calls `pretrain` of Megatron-LM, such as its pretrain_*.py, and protects that call."""

from __future__ import annotations

import sys

from deadpool.integrations.megatron.pretrain import protect_pretrain
from deadpool.integrations.megatron.refusals import MegatronRefusal
from deadpool.integrations.refusals import Refused
from deadpool.trainer.process.main import run_program


def main() -> None:
    command = sys.argv[1:]
    if not command:
        raise Refused(MegatronRefusal.NO_PROGRAM, "the script is missing: give one that calls pretrain()")
    protect_pretrain()
    run_program(command)


if __name__ == "__main__":
    main()
