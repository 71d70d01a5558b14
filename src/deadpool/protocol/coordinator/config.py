"""What every coordinator of one job works by: settings, time limits, the capture schedule, the limit of faults."""

from __future__ import annotations

from dataclasses import dataclass, field

from deadpool.protocol.coding import Scheme
from deadpool.protocol.messages import Settings
from deadpool.protocol.topology import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long each wait may last, in seconds. All are derived from one timeout in config.py."""

    node_s: float  # silence after which a node is lost
    fence_s: float  # for every survivor to come to rest
    prepare_s: float  # for newcomers to build and load
    connect_s: float  # for all groups to be made
    spare_wait_s: float  # for a spare to join when none is left
    return_s: float = 10.0  # for a silent node to come back with copies that no other node has
    hang_s: float  # without one completed step anywhere, after which the job hangs; 0: derived from its step times


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultLimit:
    """How many faults of one node, within which time, put it into quarantine. 0: it never is."""

    faults: int = 3
    within_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    settings: Settings  # what agents are told of it
    deadlines: Deadlines
    schedule: Schedule
    scheme: Scheme | None = None  # None: as many copies as the layout has holders
    fault_limit: FaultLimit = field(default_factory=FaultLimit)

    @property
    def is_alone(self) -> bool:
        """A coordinator can be found at one place only, so there is never more than one."""
        return len(self.settings.coordinators) <= 1
