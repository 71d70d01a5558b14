"""A loop as it must not be written; and, with `skips`, one that leaves a rehearsal's steps out, which it may.

twice      a second loop on the same job
bare       no `with step:`
continue   a step that is passed over before its block
"""

from __future__ import annotations

import small_job
import torch
import torch.distributed as dist
from acts import act

import deadpool


def main() -> None:
    parser = small_job.make_parser()
    parser.add_argument("--what", required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    pool = deadpool.join(backend="gloo")
    model = small_job.make_model()
    job = pool.protect(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(2 if args.what == "twice" else 1):
        for step in job.steps(3):
            if args.what == "bare" or (args.what == "continue" and step.number == 1 and not step.dry):
                continue
            if args.what == "skips" and step.dry:
                continue
            with step:
                if not step.dry:
                    act(step.number)
                dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
