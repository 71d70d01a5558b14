"""What a permit allows to be overwritten. Agents free slots by this rule, and the coordinator's ledger follows it."""

from __future__ import annotations

from deadpool.protocol.identity import Version
from deadpool.protocol.messages import Permit


def may_overwrite(version: Version, permit: Permit) -> bool:
    """Rule 5 (what a permit lets be overwritten). `keep_from` alone is not enough: the watermark lies below it."""
    return version != permit.watermark and version.number < permit.keep_from
