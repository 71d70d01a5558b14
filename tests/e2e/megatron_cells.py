"""Layouts of Megatron-Core and moments of faults. As a program it runs them without pytest, also on a GPU.

python tests/e2e/megatron_cells.py                                  # all layouts on the CPU, one fault each
LD_PRELOAD=$PWD/out/libnccl.so.2 NCCL_MULTI_RANK_GPU_ENABLE=1 CUBLAS_WORKSPACE_CONFIG=:4096:8 \\
    python tests/e2e/megatron_cells.py --device cuda --backend nccl --faults all    # ranks share one GPU
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from deadpool.config import JobConfig
from deadpool.errors import JobFailed
from deadpool.workload.harness import WorkloadTrial
from deadpool.workload.results import Results, differences

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


def run_plain(ranks: int, arguments: list[str], folder: Path) -> Results:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), str(SCRIPT)]
    done = subprocess.run(
        [*command, "--out", str(folder), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode != 0:
        raise JobFailed(done.stdout[-3000:] + done.stderr[-3000:])
    return Results.read(folder)


def run_protected(ranks: int, arguments: list[str], folder: Path, fault: str) -> tuple[Results, int]:
    config = JobConfig(nodes=ranks, spares=1, faults=(fault,), overhead_budget=0.0).checked()
    trial = WorkloadTrial(config, arguments, folder, deadline_s=300.0, script=SCRIPT)
    results = trial.run()
    return results, sum(event["what"] == "fault" for event in trial.events())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--layouts", default="", help="only those whose names contain this")
    parser.add_argument("--faults", default="backward", help="names of moments, with commas between; or all")
    args = parser.parse_args()
    moments = list(FAULTS) if args.faults == "all" else args.faults.split(",")
    wrong = 0
    for layout, (ranks, given) in LAYOUTS.items():
        if args.layouts not in layout:
            continue
        arguments = [*given, "--device", args.device, "--backend", args.backend]
        with tempfile.TemporaryDirectory(prefix="megatron-") as temporary:
            folder = Path(temporary)
            undisturbed = run_plain(ranks, arguments, folder / "plain")
            again = differences(undisturbed, run_plain(ranks, arguments, folder / "again"))
            print(f"{layout}: two plain runs {'differ: ' + '; '.join(again) if again else 'agree'}", flush=True)
            for moment in moments:
                began = time.monotonic()
                try:
                    results, faults = run_protected(ranks, arguments, folder / moment, FAULTS[moment])
                    found = differences(undisturbed, results) + ([] if faults == 1 else [f"{faults} faults"])
                except (JobFailed, AssertionError, TimeoutError) as error:
                    found = [f"{type(error).__name__}: {str(error)[-1500:]}"]
                wrong += bool(found)
                outcome = "; ".join(found) or "bit-identical"
                print(f"{layout}, {moment}: {outcome} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{wrong} cells differ" if wrong else "all cells are bit-identical")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
