"""Which interruptions there are. The default mix is that of Llama 3's 405B run.

Source: "The Llama 3 Herd of Models" (arXiv 2407.21783), section 3.3.4 and table 5: 54 days on 16,384 GPUs (2,048 nodes
of 8), 466 interruptions, of which 47 were planned and 419 were not. The counts are theirs. What follows from each cause
(whether the node is usable at once, after a reset, or after a repair) is not published: `AFTER` is our assumption, and
so is that a tenth of network faults takes a whole rack.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from deadpool.sizing.inputs import Inputs

LLAMA3_NODES, LLAMA3_DAYS, LLAMA3_PLANNED = 2048, 54, 47
LLAMA3 = {
    "faulty GPU": 148,
    "GPU HBM3 memory": 72,
    "software bug": 54,
    "network switch or cable": 35,
    "unplanned host maintenance": 32,
    "GPU SRAM memory": 19,
    "GPU system processor": 17,
    "NIC": 7,
    "NCCL watchdog timeout": 7,
    "silent data corruption": 6,
    "GPU thermal interface, sensor": 6,
    "SSD": 3,
    "power supply": 3,
    "server chassis": 2,
    "IO expansion board": 2,
    "dependency": 2,
    "CPU": 2,
    "system memory": 2,
}
PROCESS, RESET, REPAIR, RACK, PLANNED = "process", "reset", "repair", "rack", "planned"
AFTER = {
    "software bug": PROCESS,
    "NCCL watchdog timeout": PROCESS,
    "dependency": PROCESS,
    "GPU HBM3 memory": RESET,
    "GPU SRAM memory": RESET,
    "GPU system processor": RESET,
}
"""All others: repair."""
RACK_SHARES = {"network switch or cable": 0.1}
"""The share of these causes that is the switch, and with it all nodes of a rack."""
_UNEXPECTED = sum(LLAMA3.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """One kind of them. `per_s` is the rate of one node; for racks, of one rack."""

    name: str
    kind: str  # process, reset, repair, rack, planned
    per_s: float
    away_s: float

    @property
    def takes_node(self) -> bool:
        return self.kind in (RESET, REPAIR)


def shares() -> dict[str, float]:
    """Returns the shares of the unexpected interruptions, by kind."""
    found = dict.fromkeys((PROCESS, RESET, REPAIR, RACK), 0.0)
    for name, count in LLAMA3.items():
        rack = RACK_SHARES.get(name, 0.0) * count
        found[AFTER.get(name, REPAIR)] += (count - rack) / _UNEXPECTED
        found[RACK] += rack / _UNEXPECTED
    return found


def mix(inputs: Inputs, shares_by_kind: dict[str, float] | None = None) -> tuple[Interruption, ...]:
    """The interruptions of this cluster: its rate, and how it divides among kinds."""
    parts, per_s = shares_by_kind or shares(), 1.0 / (3600.0 * inputs.mtbf_h)
    away_h = {PROCESS: 0.0, RESET: inputs.reset_h, REPAIR: inputs.repair_h, RACK: inputs.rack_repair_h}
    found = [
        Interruption(name=kind, kind=kind, per_s=per_s * parts.get(kind, 0.0), away_s=3600.0 * away_h[kind])
        for kind in (PROCESS, RESET, REPAIR)
    ]
    found.append(_racks(inputs, per_s * parts.get(RACK, 0.0)))
    planned = per_s * LLAMA3_PLANNED / _UNEXPECTED
    found.append(Interruption(name=PLANNED, kind=PLANNED, per_s=planned, away_s=3600.0 * inputs.maintenance_h))
    return tuple(found)


def _racks(inputs: Inputs, per_node_s: float) -> Interruption:
    rack = Interruption(name=RACK, kind=RACK, per_s=0.0, away_s=3600.0 * inputs.rack_repair_h)
    if not inputs.nodes_per_rack:
        return rack
    if inputs.rack_mtbf_h:
        return replace(rack, per_s=0.0 if math.isinf(inputs.rack_mtbf_h) else 1.0 / (3600.0 * inputs.rack_mtbf_h))
    return replace(rack, per_s=per_node_s * inputs.nodes_per_rack)
