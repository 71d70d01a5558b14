"""Layouts of Megatron-Core, and moments of faults."""

from __future__ import annotations

from pathlib import Path

SCRIPT = Path(__file__).with_name("megatron_script.py")
STEPS = 6

OVERLAP = ["--distributed-optimizer", "--overlap", "--precision", "bf16"]
LAYOUTS = {
    "dp": (2, []),
    "dp, bf16": (2, ["--precision", "bf16"]),
    "dp, fp16 with a loss scale that moves": (2, ["--precision", "fp16"]),
    "dp, gradients overlap": (2, ["--overlap", "--microbatches", "3"]),
    "dp, distributed optimizer": (2, ["--distributed-optimizer"]),
    "dp, distributed optimizer, all overlaps": (2, OVERLAP),
    "dp, all overlaps, evaluation": (2, [*OVERLAP, "--evaluate-every", "2", "--late-hooks"]),
    "dp, recomputation, a batch that grows": (2, ["--recompute", "full", "--rampup", "--microbatches", "4"]),
    "tp": (2, ["--tensor", "2"]),
    "tp, sequence parallel": (2, ["--tensor", "2", "--sequence-parallel", "--recompute", "selective"]),
    "pp": (2, ["--pipeline", "2", "--microbatches", "4"]),
    "pp, interleaved": (2, ["--pipeline", "2", "--chunks", "2", "--evaluate-every", "3"]),
    "ep": (2, ["--expert", "2", "--experts", "4"]),
    "ep, distributed optimizer": (2, ["--expert", "2", "--experts", "4", *OVERLAP]),
    "tp x pp": (4, ["--tensor", "2", "--pipeline", "2"]),
    "tp x dp, distributed optimizer": (4, ["--tensor", "2", "--distributed-optimizer"]),
    "pp x dp, interleaved, all overlaps": (4, ["--pipeline", "2", "--chunks", "2", *OVERLAP, "--align"]),
    "ep x dp": (4, ["--expert", "2", "--experts", "4", "--distributed-optimizer"]),
}
FAULTS = {
    "forward": "at=forward step=2 node=n1",
    "backward": "at=backward step=3 node=n0",
    "update": "at=optimizer step=4 node=n1",
    "wire": "at=wire step=3 node=n1",
    "first step": "at=backward step=0 node=n0",
    "second step": "at=forward step=1 rank=1",
    "last step": f"at=optimizer step={STEPS - 1} rank=0",
}
