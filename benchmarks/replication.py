"""Measures how fast a snapshot reaches its holder, compared with two plain sockets between the same two processes.

    python benchmarks/replication.py --json out.json --bytes 268435456 --repeats 15

A push is sendfile from the slot, receive into the holder's slot, verify every digest, write the header, acknowledge.
The plain transfer is sendall and recv_into in two threads on each side, with the same bytes from and into the same kind
of memory, and one byte back. Both alternate in one run, so that a noisy machine disturbs both alike.

With `--transport nixl` the holder reads the bytes by NIXL (UCX_TLS says over what).
CPU seconds per GB are those of both sides' processes, for pushes only.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import secrets
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from output import give_out
from plain_sockets import STREAMS, receive_all, send_all

from deadpool.config.environment import SECRET_VARIABLE, TLS_VARIABLE
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.seal import Extent, Geometry, Seal
from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.arena.slot import region
from deadpool.snapshot.transfer import PushRequest, TransferClient, TransferServer
from deadpool.snapshot.transfer.nixl_transport import NixlTransport
from deadpool.snapshot.transfer.transport import OverTcp, Transport
from deadpool.wire.credentials import OFF, read_credentials
from deadpool_lab.workload.sealed_slot import seal_slot

GENERATION = Generation(1, 1)
RECORD_BYTES = 20_000
PATIENCE_S = 60.0  # a busy machine is to be measured, not given up
START_S = 300.0


def geometry_for(payload_bytes: int) -> Geometry:
    return Geometry(record_capacity=1 << 16, unique_bytes=payload_bytes, replica_bytes=0)


def opened(way: str, segment: Segment) -> Transport:
    """A transport that works and knows the segment."""
    if way == "tcp":
        return OverTcp()
    transport = NixlTransport(lambda reason: print(reason, file=sys.stderr), PATIENCE_S)
    transport.start()
    transport.add(segment)
    deadline = time.monotonic() + START_S
    while not transport.reads:
        if time.monotonic() > deadline:
            raise TimeoutError("the NIXL process did not start")
        time.sleep(0.01)
    return transport


def cpu_s(transport: Transport) -> float:
    """CPU time of this process and of its NIXL process, so far."""
    own = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    if not isinstance(transport, NixlTransport) or transport.pid is None:
        return own
    times = psutil.Process(transport.pid).cpu_times()
    return own + times.user + times.system


# --- the holder's process


def serve(payload_bytes: int, way: str) -> None:
    geometry = geometry_for(payload_bytes)
    segment = Segment.create("bench-held", geometry, 2)
    segment.prefault()
    transport = opened(way, segment)
    server = TransferServer(
        host="127.0.0.1",
        credentials=read_credentials(serving=True),
        open=lambda seal, generation, geometry: segment.slot(0),
        stored=lambda seal: None,
        dropped=lambda seal, reason: print(reason, file=sys.stderr),
        find=lambda rank, version: None,
        transport=transport,
    )
    listener = socket.create_server(("127.0.0.1", 0))
    print(json.dumps([server.start(), listener.getsockname()]), flush=True)
    socks = [listener.accept()[0] for _ in range(STREAMS)]
    extent = Extent(record_bytes=0, unique_bytes=payload_bytes, replica_bytes=0)
    target = region(segment.slot(1), geometry, extent, "unique")
    while (word := sys.stdin.readline().strip()) in ("plain", "cpu"):
        if word == "cpu":
            print(json.dumps(cpu_s(transport)), flush=True)
        else:
            receive_all(socks, target)
    server.close()
    transport.close()


# --- the owner's process


def filled_slot(segment: Segment, payload_bytes: int) -> Seal:
    extent = Extent(record_bytes=RECORD_BYTES, unique_bytes=payload_bytes, replica_bytes=0)
    target = np.frombuffer(region(segment.slot(0), segment.geometry, extent, "unique"), dtype=np.uint8)
    noise = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)
    for start in range(0, len(target), len(noise)):
        end = min(start + len(noise), len(target))
        target[start:end] = noise[: end - start]
    version = Version(GENERATION, 1)
    return seal_slot(segment.slot(0), segment.geometry, rank=0, version=version, extent=extent)


def measure(payload_bytes: int, repeats: int, streams: int, tls: str, way: str) -> dict[str, Any]:
    os.environ.update({SECRET_VARIABLE: secrets.token_hex(32), TLS_VARIABLE: tls})
    segment = Segment.create("bench-own", geometry_for(payload_bytes), 1)
    segment.prefault()
    seal = filled_slot(segment, payload_bytes)
    command = [sys.executable, __file__, "--bytes", str(payload_bytes), "--serve", "--transport", way]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdin is not None and holder.stdout is not None
    transport = opened(way, segment)
    client = TransferClient(credentials=read_credentials(), streams=streams, transport=transport)
    try:
        address, plain_address = (tuple(each) for each in json.loads(holder.stdout.readline()))
        socks = [socket.create_connection(plain_address) for _ in range(STREAMS)]
        source = region(segment.slot(0), segment.geometry, seal.extent, "unique")
        request = PushRequest(
            address=address,
            generation=GENERATION,
            seal=seal,
            geometry=segment.geometry,
            fd=segment.fd,
            slot_offset=0,
            full=True,
        )
        push_s: list[float] = []
        plain_s: list[float] = []
        spent_s: list[tuple[float, float]] = []
        for repeat in range(repeats + 2):
            before = cpu_s(transport), ask_cpu_s(holder)
            begin = time.perf_counter()
            client.push(request)
            push_s.append(time.perf_counter() - begin)
            spent_s.append((cpu_s(transport) - before[0], ask_cpu_s(holder) - before[1]))
            holder.stdin.write("plain\n")
            holder.stdin.flush()
            begin = time.perf_counter()
            send_all(socks, source)
            plain_s.append(time.perf_counter() - begin)
            report_progress(repeat, repeats + 2, payload_bytes, push_s[-1], plain_s[-1])
        costs = {
            f"cpu_s_per_gb_{side}": round(
                statistics.median(pair[index] for pair in spent_s[2:]) / payload_bytes * 1e9, 3
            )
            for index, side in enumerate(("sender", "holder"))
        }
        # The first two warm sockets and page tables.
        return summary(payload_bytes, push_s[2:], plain_s[2:]) | {"transport": way} | costs
    finally:
        client.close()
        transport.close()
        holder.stdin.close()
        holder.wait(30)
        segment.close()


def ask_cpu_s(holder: subprocess.Popen[str]) -> float:
    assert holder.stdin is not None and holder.stdout is not None
    holder.stdin.write("cpu\n")
    holder.stdin.flush()
    return float(json.loads(holder.stdout.readline()))


def report_progress(index: int, count: int, payload_bytes: int, push_s: float, plain_s: float) -> None:
    rates = f"push {payload_bytes / push_s / 1e9:5.2f} GB/s   plain {payload_bytes / plain_s / 1e9:5.2f} GB/s"
    end = "\n" if index + 1 == count or not sys.stderr.isatty() else ""
    print(f"\r[{index + 1}/{count}] {rates}", end=end, file=sys.stderr, flush=True)


def summary(payload_bytes: int, push_s: list[float], plain_s: list[float]) -> dict[str, Any]:
    push = payload_bytes / statistics.median(push_s) / 1e9
    plain = payload_bytes / statistics.median(plain_s) / 1e9
    return {
        "push_gbps": round(push, 3),
        "plain_gbps": round(plain, 3),
        "ratio": round(push / plain, 3),
        "push_best_gbps": round(payload_bytes / min(push_s) / 1e9, 3),
        "plain_best_gbps": round(payload_bytes / min(plain_s) / 1e9, 3),
        "push_median_ms": round(statistics.median(push_s) * 1e3, 3),
        "payload_bytes": payload_bytes,
        "repeats": len(push_s),
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the result here as well")
    parser.add_argument("--bytes", type=int, default=256 << 20, help="payload of one snapshot")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--streams", type=int, default=2)
    parser.add_argument("--tls", default=OFF, help="off, ephemeral or a folder; the plain streams stay plain")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--transport", choices=("tcp", "nixl"), default="tcp")
    options = parser.parse_args()
    if options.serve:
        serve(options.bytes, options.transport)
        return
    result = measure(options.bytes, options.repeats, options.streams, options.tls, options.transport)
    give_out(result, options.json)


if __name__ == "__main__":
    main()
