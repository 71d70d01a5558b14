"""A script that leaves things in its process that depend on its rank: as packages do, and as users do.

`remembering` stands for an installed package, with state that it makes once in a process. Its data, and so its losses,
follow what that says. What is there at the end is written down.
"""

from __future__ import annotations

import json
import logging
import os
import threading

import remembering
from small_job import inputs_of, make_model, make_parser, reduce_over, train

import deadpool

args = make_parser().parse_args()
state = remembering.State()
logging.getLogger().addHandler(logging.NullHandler(level=int(os.environ["RANK"])))
threading.Thread(target=threading.Event().wait, name=f"the script's, rank {os.environ['RANK']}", daemon=True).start()
pool = deadpool.join(backend="gloo")
train(
    pool,
    make_model(),
    args.out,
    reduce=lambda model, step: reduce_over(None, model),
    following=lambda step: inputs_of(step, state.rank),
)
found = {
    "handlers": [each.level for each in logging.getLogger().handlers],
    "threads": [thread.name for thread in threading.enumerate() if thread.name.startswith("the script's")],
}
(args.out / f"left-{os.environ['RANK']}").write_text(json.dumps(found))
