"""Schemes that keep copies of each rank's state on other nodes: what each costs, and how long it leaves a gap."""

from __future__ import annotations

import math
from dataclasses import dataclass

from deadpool.errors import ConfigError
from deadpool.protocol import schemes
from deadpool.sizing.inputs import GB, Inputs

CAPTURE_COST_S_PER_GB = 0.000275
"""The part of a step that a GB captured beside it costs: 5.5 ms for 20 GB were measured on an H200
(docs/benchmarks.md).
"""
STEP_SHARE = 0.7
"""The share of a step in which a copy from the device has to fit: forward and backward."""


@dataclass(frozen=True, slots=True)
class ProtectionScheme:
    """`copies` whole copies elsewhere; or, with `coded` k, m parity blocks for each group of k nodes."""

    copies: int
    coded: int = 0  # k; then `copies` is m

    def __str__(self) -> str:
        return f"rs({self.coded},{self.copies})" if self.coded else f"copies={self.copies}"

    @property
    def survives(self) -> int:
        """The number of nodes that may be lost at once, whichever they are."""
        return self.copies

    @property
    def memory_share(self) -> float:
        """The memory on other nodes, as a share of one whole copy."""
        return self.copies / self.coded if self.coded else float(self.copies)

    @property
    def group(self) -> int:
        """Nodes of which one more loss than it survives is fatal."""
        return self.coded + self.copies if self.coded else self.copies + 1

    @property
    def racks_needed(self) -> int:
        """The number of racks with which the loss of one is survived."""
        return math.ceil(self.group / self.copies)


SCHEMES = (
    ProtectionScheme(1, 8),
    ProtectionScheme(1, 4),
    ProtectionScheme(2, 8),
    ProtectionScheme(1),
    ProtectionScheme(2),
)


def parse_scheme(text: str) -> ProtectionScheme:
    """What `deadpool run --protect` takes, and copies of something."""
    try:
        scheme = schemes.Scheme.parse(text)
    except ValueError:
        scheme = None
    if scheme is None or not scheme.losses:
        raise ConfigError(f"protect={text!r} cannot be used: give copies=1 or more, or rs(K,M) such as rs(8,2)")
    return ProtectionScheme(scheme.losses, scheme.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The costs of one scheme, for one cluster and job."""

    own_bytes: float  # host memory per node for its own ranks
    held_bytes: float  # and for what it holds of others
    wire_bytes: float  # that a node sends per captured version
    capture_s: float  # from the device to host memory
    push_s: float
    rebuild_s: float  # until a newcomer's node has its ranks' state
    own_load_s: float

    @property
    def lag_s(self) -> float:
        """The time from the end of a step until its version is complete everywhere."""
        return self.capture_s + self.push_s


def costs_of(scheme: ProtectionScheme, inputs: Inputs) -> Costs:
    node_bytes = GB * inputs.state_gb * inputs.ranks_per_node
    network, device = GB * inputs.network_gb_s, GB * inputs.pcie_gb_s
    blocks = max(1, scheme.coded)
    return Costs(
        own_bytes=inputs.slots * node_bytes,
        held_bytes=inputs.slots * node_bytes * scheme.memory_share,
        wire_bytes=node_bytes * scheme.copies,
        capture_s=GB * inputs.state_gb / device,
        push_s=node_bytes * scheme.copies / network,
        rebuild_s=blocks * node_bytes / network + GB * inputs.state_gb / device,
        own_load_s=GB * inputs.state_gb / device,
    )


def fits(scheme: ProtectionScheme, inputs: Inputs) -> bool:
    costs = costs_of(scheme, inputs)
    enough = scheme.group <= inputs.nodes
    return enough and costs.own_bytes + costs.held_bytes <= GB * inputs.host_memory_gb


def least_interval(scheme: ProtectionScheme, inputs: Inputs) -> int:
    """Returns the least interval in steps: the copy fits beside forward and backward, and a slot is free again when it
    is needed.
    """
    costs = costs_of(scheme, inputs)
    by_copy = costs.capture_s / (STEP_SHARE * inputs.step_s)
    by_slots = costs.lag_s / ((inputs.slots - 1) * inputs.step_s)
    return max(1, math.ceil(by_copy - 1e-9), math.ceil(by_slots - 1e-9))


def overhead(inputs: Inputs, every: int) -> float:
    """Share of the step time that captures cost."""
    return CAPTURE_COST_S_PER_GB * inputs.state_gb / (every * inputs.step_s)


def best_interval(scheme: ProtectionScheme, inputs: Inputs, faults_per_s: float) -> int:
    """Captures cost c / (k T), and half an interval is lost per fault, r k T / 2: the sum is least at
    k T = sqrt(2 c / r). Never less than what fits."""
    least, cost = least_interval(scheme, inputs), CAPTURE_COST_S_PER_GB * inputs.state_gb
    if faults_per_s <= 0:
        return max(least, round(600.0 / inputs.step_s))
    return max(least, round(math.sqrt(2.0 * cost / faults_per_s) / inputs.step_s))
