"""What it costs to turn messages into bytes and back: a heartbeat, and the large messages of a recovery.

    python benchmarks/codec.py [--ranks 4096] [--runs 3] [--json FILE]

The heartbeat and the acknowledged fence are those of a node with eight ranks. The plans name `--ranks` ranks: one keeps
all of them, in the other every rank is fetched and pushed again. Figures are microseconds of CPU time per message, so
that other work on the machine does not count: each run takes the mean over many messages, and of the runs the median
and the worst are shown.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from output import give_out

from deadpool.protocol.identity import Address, Generation, Schedule, Version
from deadpool.protocol.messages import (
    CaptureCostReport,
    Copy,
    FenceAck,
    Fetch,
    Heartbeat,
    Holder,
    Inventory,
    Live,
    Lives,
    NodeCopies,
    Order,
    Permit,
    Plan,
    RankOrder,
    Source,
    WorkTime,
)
from deadpool.protocol.seal import Digest, Extent, Geometry, Seal
from deadpool.wire.codec import decode, encode

GENERATION = Generation(3, 17)
VERSION, FLOOR = Version(GENERATION, 12_000), Version(GENERATION, 11_990)
ADDRESS = Address(host="10.20.30.40", port=45678)
RUN_S = 0.3


def heartbeat() -> Heartbeat:
    return Heartbeat(
        generation=GENERATION,
        steps=tuple((rank, 12_000) for rank in range(800, 808)),
        costs=tuple(
            CaptureCostReport(rank=rank, every=10, step_s=0.81, stall_s=0.0123, commit_s=1.75)
            for rank in range(800, 808)
        ),
        work_times=tuple(WorkTime(rank=rank, step_s=0.81, own_s=0.7) for rank in range(800, 808)),
    )


def copy_of(rank: int, version: Version) -> Copy:
    extent = Extent(record_bytes=4000, unique_bytes=10_000_000_000, replica_bytes=0)
    digest = Digest(record=rank * 7919 + (1 << 63), unique=rank * 104_729 + (1 << 62), replica=0)
    seal = Seal(rank=rank, version=version, extent=extent, digest=digest, full=True)
    return Copy(seal=seal, geometry=Geometry(record_capacity=65536, unique_bytes=10_000_000_000, replica_bytes=0))


def fence_ack(ranks: int) -> FenceAck:
    copies = tuple(copy_of(rank, version) for version in (VERSION, FLOOR) for rank in range(ranks))
    live = tuple(Live(rank=rank, version=VERSION, clean=True) for rank in range(ranks))
    inventory = Inventory(live=Lives.of(live), own=NodeCopies.of(copies), held=NodeCopies.of(copies))
    return FenceAck(generation=GENERATION, inventory=inventory)


def plan(orders: tuple[RankOrder, ...]) -> Order:
    permit = Permit(generation=GENERATION, watermark=FLOOR, keep_from=11_991, schedule=Schedule(every=10, start=12_000))
    part = Plan(
        generation=GENERATION,
        cause="fault-17",
        resume=VERSION,
        permit=permit,
        store_rank=0,
        orders=orders,
        holders=(Holder(node="node-0001", address=ADDRESS), Holder(node="node-0002", address=ADDRESS)),
        held=tuple(range(len(orders))),
    )
    return Order(term=3, message=part)


def fetched(rank: int) -> RankOrder:
    source = Source(node="node-0003", address=ADDRESS, rank=rank, regions=("record", "unique"))
    fetch = tuple(Fetch(copy=copy_of(rank, version), groups=((source,),)) for version in (VERSION, FLOOR))
    return RankOrder(rank=rank, keep=False, fetch=fetch, pushes=(("node-0004", FLOOR), ("node-0004", VERSION)))


def mean_us(act: Callable[[], Any]) -> float:
    """Over as many calls as fit into a run."""
    count, began = 0, time.process_time()
    while (elapsed := time.process_time() - began) < RUN_S:
        act()
        count += 1
    return 1e6 * elapsed / count


def figures(message: Any, runs: int) -> dict[str, Any]:
    data = encode(message)
    assert decode(data) == message
    result: dict[str, Any] = {"bytes": len(data)}
    for name, act in (("encode_us", lambda: encode(message)), ("decode_us", lambda: decode(data))):
        each = [mean_us(act) for _ in range(runs)]
        result[name] = {"median": round(statistics.median(each), 2), "worst": round(max(each), 2)}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    messages = {
        "heartbeat, 8 ranks": heartbeat(),
        "fence acknowledged, 8 ranks": fence_ack(8),
        f"fence acknowledged, {options.ranks} ranks": fence_ack(options.ranks),
        f"plan, {options.ranks} ranks kept": plan(tuple(RankOrder(rank=r, keep=True) for r in range(options.ranks))),
        f"plan, {options.ranks} ranks fetched": plan(tuple(fetched(rank) for rank in range(options.ranks))),
    }
    give_out({name: figures(message, options.runs) for name, message in messages.items()}, options.json)


if __name__ == "__main__":
    main()
