"""Serves the page of a job of many nodes whose events and status are generated, and lets it train on: FOLDER NODES.

Status and events come as from a real coordinator, once a second, and every few seconds a rank lags."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from dashboard_records import T0, fault, node_name, progress, progress_record, start, status, write_run

from deadpool.views.dashboard.feed import Feed
from deadpool.views.dashboard.run_files import RunFiles
from deadpool.views.dashboard.server import DashboardServer
from deadpool.views.dashboard.words import access_token

PER_NODE, SPARES, SECRET = 8, 16, b"a secret of generated jobs"


def write_large_run(folder: Path, nodes: int) -> list[str]:
    """Returns the seats after two faults."""
    seats = [node_name(index) for index in range(nodes)]
    records = [*start(nodes, SPARES), *progress(0, 100)]
    for number, position in ((1, 7), (2, 500)):
        spare, at = node_name(nodes + number), T0 + 60 + 200 * number
        records += fault(number, at, seats, position=position, spare=spare, per_node=PER_NODE, step=99)
        seats[position] = spare
        records += [{**each, "t": at + 10 + each["t"] - T0} for each in progress(100 * number, 100 * number + 100)]
    slow = {"t": T0 + 500, "what": "straggler", "node": seats[100], "rank": 800, "reason": "works 1.8 times as long"}
    bad = {"t": T0 + 501, "what": "quarantined", "node": node_name(nodes + 5), "reason": "3 faults in an hour"}
    write_run(
        folder, [*records, slow, bad], nodes=nodes, per_node=PER_NODE, losses=[9.0 / (1 + i / 50) for i in range(3000)]
    )
    return seats


async def main(folder: Path, nodes: int) -> None:
    seats = write_large_run(folder, nodes)
    spares = [node_name(nodes + index) for index in range(SPARES) if node_name(nodes + index) not in seats]
    dice, began, told = random.Random(1), time.time(), status(seats, spares, PER_NODE, 300)

    async def ask() -> dict[str, Any]:
        step = 300 + int(2 * (time.time() - began))
        told["step"] = step
        for node in told["nodes"]:
            node["steps"] = dict.fromkeys(node["steps"], step)
        for _ in range(20):
            chosen = dice.choice(told["nodes"][:nodes])
            chosen["steps"][str(chosen["ranks"][3])] = step - 60
        with (folder / "events.jsonl").open("a") as log:
            line = progress_record(T0 + 600 + time.time() - began, step, 1)
            log.write(json.dumps(line) + "\n")
        return told

    server = DashboardServer(Feed(RunFiles(folder), ask), access_token(SECRET))
    print(await server.start("127.0.0.1", 0), flush=True)
    await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
