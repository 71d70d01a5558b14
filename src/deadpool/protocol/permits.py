"""What a permit permits. Part of both cores."""

from __future__ import annotations

from deadpool.protocol.identity import Version
from deadpool.protocol.messages import Permit


def may_overwrite(version: Version, permit: Permit) -> bool:
    """Rule 5, what a permit lets be overwritten. Below `keep_from` alone would not do: the watermark itself lies
    there."""
    return version != permit.watermark and version.number < permit.keep_from
