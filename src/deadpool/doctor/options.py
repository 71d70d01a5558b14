"""What an examination is told: what the job will need, and where it will write."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from deadpool.errors import ConfigError

_UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    run_dir: Path | None = None
    arena_bytes: int = 0  # that this node will have to hold
    gpus: int | None = None  # that this node must have; None: as many as it has
    rdma: bool = False  # the job uses InfiniBand or RoCE, whether or not a device is seen
    end_time: float | None = None  # when the allocation ends, in seconds since 1970
    least_time_s: float = 600.0
    import_torch: bool = False
    timeout_s: float = 5.0


def parse_size(text: str, name: str) -> int:
    """Reads a size such as 63GB, 1.5GiB or 4096."""
    if (match := _SIZE.fullmatch(text)) is None:
        raise ConfigError(f"{name}={text!r} cannot be used: give a size as in 63GB, 1.5GiB or 4096")
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()])
