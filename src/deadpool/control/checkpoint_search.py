"""Which durable checkpoint a coordinator begins from, or may fall back to. It only reads the store.

Cores decide what follows from it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from deadpool.config import JobConfig
from deadpool.config_values import parse_bandwidth, parse_period
from deadpool.durable.manifest import Manifest
from deadpool.durable.reading import as_checkpoint, newest_checkpoint
from deadpool.durable.store import open_store
from deadpool.errors import ConfigError
from deadpool.protocol.checkpoint import Checkpoint, DurableSettings


def durable_settings(config: JobConfig, secret: bytes) -> DurableSettings | None:
    if not config.durable:
        return None
    every_s, every_steps = parse_period(config.durable_every)
    return DurableSettings(
        where=absolute(config.durable),
        job=hashlib.sha256(b"deadpool durable " + secret).hexdigest()[:8],
        every_s=every_s,
        every_steps=every_steps,
        bytes_per_s=parse_bandwidth(config.durable_bandwidth),
        nice=config.durable_nice,
        timeout_s=config.durable_timeout_s,
        keep_last=config.durable_keep,
        keep_every=config.durable_keep_every,
    )


def absolute(where: str) -> str:
    """Agents have other working directories."""
    return where if "://" in where else str(Path(where).absolute())


def find_to_begin(config: JobConfig, settings: DurableSettings) -> Checkpoint | None:
    """For a job that begins. None: from the first line of the script."""
    if config.resume == "no":
        return None
    store = open_store(settings.where)
    try:
        newest = newest_checkpoint(store)
        if newest is None:
            _require_none_is_needed(config, settings)
            return None
        _require_same_layout(config, newest)
        return as_checkpoint(store, newest)
    except OSError as error:
        raise ConfigError(f"durable={settings.where!r} cannot be read: {error}") from error


def find_to_fall_back_to(config: JobConfig, settings: DurableSettings) -> Checkpoint | None:
    """For a coordinator that takes over a job: the newest one that this job has written, or may have begun from."""
    store = open_store(settings.where)
    newest = newest_checkpoint(store, job=settings.job if config.resume == "no" else None)
    return as_checkpoint(store, newest) if newest is not None and _same_layout(config, newest) else None


def _require_none_is_needed(config: JobConfig, settings: DurableSettings) -> None:
    if config.resume == "must":
        raise ConfigError(
            f"there is no complete checkpoint in {settings.where}: give another --durable, or --resume auto to begin "
            "from the first step"
        )


def _same_layout(config: JobConfig, manifest: Manifest) -> bool:
    return (manifest.positions, manifest.per_node) == (config.nodes, config.nproc_per_node)


def _require_same_layout(config: JobConfig, manifest: Manifest) -> None:
    if not _same_layout(config, manifest):
        raise ConfigError(
            f"checkpoint {manifest.name} is of {manifest.positions} nodes with {manifest.per_node} ranks each, and "
            f"this job has {config.nodes} with {config.nproc_per_node}: give the same --nodes and --nproc-per-node, or "
            "load it in your script with torch.distributed.checkpoint.load"
        )
