"""How long the coordinator waits, for whom and for what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long each wait may last, in seconds. All are derived from one timeout in config.py."""

    node_s: float  # silence after which a node is lost
    fence_s: float  # for every survivor to come to rest
    prepare_s: float  # for newcomers to build and load
    connect_s: float  # for all groups to be made
    spare_wait_s: float  # for a spare to join when none is left
    return_s: float = 10.0  # for a node that fell silent to come back with copies that nobody else has
    hang_s: float  # without one completed step anywhere, after which the job hangs; 0: derived from its step times
