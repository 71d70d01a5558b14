"""Measures erasure-coded memory beside whole copies: how fast blocks are added, contributions, rebuilds.

    python benchmarks/erasure.py --json out.json --mib 64 256 --repeats 5

`fold` adds pieces of 4 MiB to parities as one node of the group does, in one thread, from memory that is not in the
cache. `contribute` sends one member's share to one other process, which checks and adds it; `push` stores a snapshot of
as many bytes there, as a whole copy. `rebuild` brings a lost rank back from k members, `fetch` from one whole copy of
it; all other members are in one other process. Each pair alternates in one run, so that a noisy machine disturbs both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from output import give_out

from deadpool.config.environment import SECRET_VARIABLE
from deadpool.protocol.features.coding.stripes import parity_layout
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.schemes import RankGroup
from deadpool.protocol.seal import PIECE_BYTES, Extent, Geometry, Seal
from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.arena.slot import compute_piece_digests, region, write_seal
from deadpool.snapshot.erasure.block_source import BlockSource
from deadpool.snapshot.erasure.contribute import ContributeRequest, contribute
from deadpool.snapshot.erasure.galois import Coder, NumpyCoder, chosen_coder, coefficient
from deadpool.snapshot.erasure.parity_session import FoundParity, ParityCallbacks, ParitySession
from deadpool.snapshot.erasure.parity_slot import Contribution, ParitySlot
from deadpool.snapshot.erasure.rebuild import RebuildRequest, SnapshotRebuild
from deadpool.snapshot.transfer import (
    FoundCopy,
    PullRequest,
    PushRequest,
    TransferClient,
    TransferRefused,
    TransferServer,
)
from deadpool.wire.credentials import read_credentials

GENERATION = Generation(1, 1)
VERSION = Version(GENERATION, 1)
SCHEMES = {"rs(4,1)": (4, 1), "rs(8,2)": (8, 2)}
FOLD_PIECES = 64


def timed(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


# --- adding alone


def measure_fold(coder: Coder, data_blocks: int, parities: int, repeats: int) -> dict[str, float]:
    """Every piece goes into one parity. Of a node's parities as many are plain sums as are not."""
    pieces = np.random.default_rng(0).integers(0, 256, (FOLD_PIECES, PIECE_BYTES), np.uint8)
    rows = np.zeros((-(-FOLD_PIECES // data_blocks), PIECE_BYTES), np.uint8)

    def fold() -> None:
        for number, piece in enumerate(pieces):
            row, member = divmod(number, data_blocks)
            factor = coefficient(parities, row % parities, member)
            coder.fold(memoryview(rows[row]), factor, memoryview(piece))

    fold()
    walls, cpus = [], []
    for _ in range(repeats):
        cpu = time.process_time()
        walls.append(timed(fold))
        cpus.append(time.process_time() - cpu)
    gb = pieces.nbytes / 1e9
    wall, cpu = statistics.median(walls), statistics.median(cpus)
    return {"gbps": round(gb / wall, 2), "cpu_s_per_gb": round(cpu / gb, 3)}


# --- a group whose members all have the same bytes; that makes no difference to the time


class Members:
    def __init__(self, data_blocks: int, parities: int, shard_bytes: int) -> None:
        count = data_blocks + parities
        self.group = RankGroup(ranks=tuple(range(count)), parities=parities)
        self.geometry = Geometry(record_capacity=4096, unique_bytes=shard_bytes, replica_bytes=0)
        self.extent = Extent(record_bytes=4096, unique_bytes=shard_bytes, replica_bytes=0)
        self.segment = Segment.create("bench-own", self.geometry, 1)
        self.segment.prefault()
        target = np.frombuffer(region(self.segment.slot(0), self.geometry, self.extent, "unique"), np.uint8)
        noise = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)
        for start in range(0, shard_bytes, len(noise)):
            target[start : start + len(noise)] = noise[: shard_bytes - start]
        self.digests = compute_piece_digests(self.segment.slot(0), self.geometry, self.extent)

    def seal(self, rank: int, version: Version = VERSION) -> Seal:
        return Seal(rank=rank, version=version, extent=self.extent, digest=self.digests.digest, full=True)

    def contribution(self, member: int, target: int, version: Version = VERSION) -> Contribution:
        return Contribution(
            group=self.group,
            member=member,
            target=target,
            seal=self.seal(member, version),
            geometry=self.geometry,
            digests=self.digests,
        )

    def parity(self, target: int, version: Version, segment: Segment) -> ParitySlot:
        return ParitySlot(layout=self.layout(target), version=version, view=segment.slot(0))

    def layout(self, target: int):
        return parity_layout(self.group, target, (self.geometry,) * (self.group.size - 1))

    def coded(self, target: int) -> tuple[ParitySlot, Segment]:
        """A complete parity, made without sockets."""
        segment = Segment.create(f"bench-parity-{target}", self.layout(target).geometry, 1)
        parity = self.parity(target, VERSION, segment)
        for member in self.group.others(target):
            contribution = self.contribution(member, target)
            parity.begin(contribution)
            for index, (_, piece) in enumerate(contribution.pieces()):
                view = region(self.segment.slot(0), self.geometry, self.extent, piece.region)
                parity.fold(member, index, view[piece.offset : piece.offset + piece.size])
        parity.seal()
        return parity, segment


# --- the other process


def serve(data_blocks: int, parities: int, shard_bytes: int) -> None:
    """Member 0 is lost. The server of member 1 takes contributions and copies too."""
    members = Members(data_blocks, parities, shard_bytes)
    servers = []
    for member in range(1, members.group.size):
        servers.append(_server(members, member))
    print(json.dumps([server.start() for server in servers]), flush=True)
    sys.stdin.readline()
    for server in servers:
        server.close()


def _server(members: Members, member: int) -> TransferServer:
    sealed, parity_segment = members.coded(member)
    arriving = Segment.create("bench-arriving", members.layout(member).geometry, 1)
    held = Segment.create("bench-held", members.geometry, 1)
    arriving.prefault()
    held.prefault()
    fresh: dict[Version, ParitySlot] = {}

    def open_parity(contribution: Contribution, generation: Generation) -> ParitySlot | TransferRefused:
        if contribution.version not in fresh:
            fresh.clear()
            fresh[contribution.version] = members.parity(member, contribution.version, arriving)
        return fresh[contribution.version]

    def find(rank: int, version: Version) -> FoundCopy:
        return FoundCopy(fd=members.segment.fd, offset=0, seal=members.seal(rank), geometry=members.geometry)

    parities = ParityCallbacks(
        open=open_parity,
        contributed=lambda contribution: None,
        dropped=lambda contribution, reason: print(reason, file=sys.stderr),
        find=lambda name: FoundParity(fd=parity_segment.fd, offset=0, slot=sealed),
    )
    return TransferServer(
        host="127.0.0.1",
        credentials=read_credentials(serving=True),
        open=lambda seal, generation, geometry: held.slot(0),
        stored=lambda seal: None,
        dropped=lambda seal, reason: print(reason, file=sys.stderr),
        find=find,
        joint=lambda connection: ParitySession(connection, parities),
    )


# --- the process that is measured


def measure_transfers(data_blocks: int, parities: int, shard_bytes: int, repeats: int) -> dict[str, Any]:
    os.environ[SECRET_VARIABLE] = secrets.token_hex(32)
    members = Members(data_blocks, parities, shard_bytes)
    command = [sys.executable, __file__, "--serve", str(data_blocks), str(parities), str(shard_bytes)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdin is not None and other.stdout is not None
    client = TransferClient(credentials=read_credentials())
    into = Segment.create("bench-newcomer", members.geometry, 1)
    into.prefault()
    try:
        addresses = [tuple(each) for each in json.loads(other.stdout.readline())]
        share = sum(piece.size for _, piece in members.contribution(0, 1).pieces())
        pushed = push_request(members, addresses[0], share)
        works: dict[str, Callable[[int], Any]] = {
            "contribute": lambda number: contribute(client, contribute_request(members, addresses[0], number)),
            "push": lambda number: client.push(pushed),
            "rebuild": lambda number: rebuild(client, members, addresses, into),
            "fetch": lambda number: client.pull(pull_request(members, addresses[0], into)),
        }
        seconds: dict[str, list[float]] = {name: [] for name in works}
        for number in range(repeats + 1):
            for name, work in works.items():
                seconds[name].append(timed(lambda: work(number + 2)))  # noqa: B023
            report_progress(number, repeats + 1, {name: each[-1] for name, each in seconds.items()})
        medians = {name: statistics.median(each[1:]) for name, each in seconds.items()}  # the first warms up
        return summary(medians, share, shard_bytes, data_blocks)
    finally:
        client.close()
        other.stdin.close()
        other.wait(60)
        into.close()
        members.segment.close()


def contribute_request(members: Members, address: Any, number: int) -> ContributeRequest:
    contribution = members.contribution(0, 1, Version(GENERATION, number))
    return ContributeRequest(
        address=address,
        generation=GENERATION,
        contribution=contribution,
        geometry=members.geometry,
        fd=members.segment.fd,
        slot_offset=0,
    )


def push_request(members: Members, address: Any, share: int) -> PushRequest:
    """A snapshot of the first bytes of the slot."""
    extent = Extent(record_bytes=0, unique_bytes=share, replica_bytes=0)
    digest = compute_piece_digests(members.segment.slot(0), members.geometry, extent).digest
    seal = replace(members.seal(0), extent=extent, digest=digest)
    return PushRequest(
        address=address,
        generation=GENERATION,
        seal=seal,
        geometry=members.geometry,
        fd=members.segment.fd,
        slot_offset=0,
        full=True,
    )


def pull_request(members: Members, address: Any, into: Segment) -> PullRequest:
    return PullRequest(
        address=address,
        generation=GENERATION,
        rank=0,
        version=VERSION,
        regions=("record", "unique"),
        digest=members.digests.digest,
        geometry=members.geometry,
        into=into.slot(0),
    )


def rebuild(client: TransferClient, members: Members, addresses: list[Any], into: Segment) -> None:
    sources = tuple(
        BlockSource(node=f"n{member}", address=address, member=member, is_parity=is_parity)
        for member, address in enumerate(addresses, start=1)
        for is_parity in (False, True)
    )
    request = RebuildRequest(
        generation=GENERATION,
        group=members.group,
        seal=members.seal(0),
        geometry=members.geometry,
        sources=sources,
        into=into.slot(0),
    )
    SnapshotRebuild(client, request).run()
    write_seal(into.slot(0), members.seal(0))


def report_progress(index: int, count: int, seconds: dict[str, float]) -> None:
    words = "   ".join(f"{name} {value * 1e3:.0f} ms" for name, value in seconds.items())
    print(f"[{index + 1}/{count}] {words}", file=sys.stderr, flush=True)


def summary(medians: dict[str, float], share: int, shard_bytes: int, data_blocks: int) -> dict[str, Any]:
    return {
        "share_bytes": share,
        "contribute_gbps": round(share / medians["contribute"] / 1e9, 3),
        "push_gbps": round(share / medians["push"] / 1e9, 3),
        "contribute_to_push": round(medians["contribute"] / medians["push"], 2),
        "rebuild_ms": round(medians["rebuild"] * 1e3, 1),
        "rebuild_read_gbps": round(data_blocks * shard_bytes / medians["rebuild"] / 1e9, 3),
        "fetch_ms": round(medians["fetch"] * 1e3, 1),
        "rebuild_to_fetch": round(medians["rebuild"] / medians["fetch"], 2),
    }


def measure(sizes_mib: list[int], repeats: int) -> dict[str, Any]:
    coders = {coder.name: coder for coder in (chosen_coder(), NumpyCoder())}
    machine = {"cores": os.cpu_count(), "cpu": platform.processor(), "python": platform.python_version()}
    result: dict[str, Any] = {"coder": chosen_coder().name, "machine": machine}
    for name, scheme in SCHEMES.items():
        result[name] = {"fold": {each: measure_fold(coder, *scheme, repeats) for each, coder in coders.items()}}
        for mib in sizes_mib:
            print(f"{name}, {mib} MiB per rank", file=sys.stderr)
            result[name][f"{mib} MiB"] = measure_transfers(*scheme, mib << 20, repeats)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the result here as well")
    parser.add_argument("--mib", type=int, nargs="+", default=[64, 256], help="sizes of a rank's snapshot")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--serve", type=int, nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
        return
    give_out(measure(options.mib, options.repeats), options.json)


if __name__ == "__main__":
    main()
