"""`deadpool lab sim --nodes N`: lose one node of a job of that size, and measure what it costs the coordinator."""

from __future__ import annotations

import json as json_format
import time
from pathlib import Path

from deadpool.cli.given_path import write_output


def measure(nodes: int, per_node: int, out: Path | None) -> None:
    from deadpool.control.event_loop import collect_seldom
    from deadpool.wire.codec import decode, encode
    from deadpool_lab.sim.scale.loss import measure

    collect_seldom()  # as the real coordinator does
    began = time.monotonic()
    report = measure(nodes, per_node, encode=encode, decode=decode).report()
    report["elapsed_s"] = round(time.monotonic() - began, 1)
    recovery = report["recovery"]
    print(f"{nodes} nodes of {per_node} ranks, one coordinator, one node lost; the worst of three losses")
    print(
        f"heartbeats: {100 * report['heartbeat_share_of_a_core']:.1f} % of a core, "
        f"{report['cpu_us_per_heartbeat']} us each\n"
        f"fault to last plan sent: {report['fault_to_last_plan_s']:.3f} s of CPU, "
        f"to last Go sent: {report['fault_to_last_go_s']:.3f} s\n"
        f"recovery: {recovery['messages']} messages, {recovery['bytes_in']} bytes in, {recovery['bytes_out']} out, "
        f"{recovery['coordinator_cpu_s']:.3f} s of CPU\n"
        f"each committed version: {report['committed_version']['messages']} messages, "
        f"{report['committed_version']['coordinator_cpu_s']:.3f} s of CPU"
    )
    for name, each in recovery["by_type"].items():
        print(f"  {name:13} {each['messages']:7} messages {each['bytes']:10} bytes {each['cpu_s']:8.3f} s")
    if out is not None:
        write_output(out, json_format.dumps(report, indent=1))
