"""Which durable checkpoint a coordinator begins from, or may fall back to. It only reads the store.

Cores decide what follows from it.
"""

from __future__ import annotations

import hashlib
import itertools
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from deadpool.config.job_config import JobConfig
from deadpool.config.values import parse_bandwidth, parse_period
from deadpool.control.shells import CoordinatorAccess, CoordinatorShell
from deadpool.durable.manifest import Manifest, as_checkpoint, complete_ones, newest_checkpoint, what_is_missing
from deadpool.durable.store import Store, absolute, open_store
from deadpool.errors import ConfigError, DeadPoolError
from deadpool.events.event import Event
from deadpool.protocol.causes import Checkpoint, DurableSettings
from deadpool.protocol.features.durable.coordinator.known import OLDER_ONES
from deadpool.protocol.inputs import CheckpointAsked, CheckpointFound, FeatureInput

Skipped = Callable[[str, int, str], None]
"""Hears of a checkpoint that cannot be read: its name, its step and why."""


class CheckpointSearch(CoordinatorShell):
    def __init__(self, access: CoordinatorAccess) -> None:
        self._config, self._founds = access.config, access.founds
        self._settings = durable_settings(access.config, access.secret)

    def settings(self) -> Mapping[str, Any]:
        return {"durable": self._settings}

    def asked_by(self) -> Mapping[signal.Signals, FeatureInput]:
        return {signal.SIGUSR1: CheckpointAsked()}

    def begin(self, note: Callable[[Event], None]) -> Sequence[CheckpointFound]:
        if self._settings is None or not self._founds:
            return ()

        def skip(name: str, step: int, reason: str) -> None:
            note(Event(what="checkpoint_skipped", detail={"step": step, "name": name, "reason": reason}))

        found = find_to_begin(self._config, self._settings, skip)
        return [CheckpointFound(checkpoint=checkpoint) for checkpoint in found]

    def lead(self) -> CheckpointFound | Event | None:
        if self._settings is None or self._founds:
            return None
        try:
            found = find_to_fall_back_to(self._config, self._settings)
        except (OSError, DeadPoolError) as error:
            return Event(what="checkpoint_failed", detail={"reason": f"checkpoints cannot be read: {error}"})
        return CheckpointFound(checkpoint=found) if found is not None else None


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


def find_to_begin(config: JobConfig, settings: DurableSettings, skipped: Skipped) -> list[Checkpoint]:
    """Finds the checkpoints that a job may begin from: the newest one, and some older ones in case that its bytes have
    changed. An empty list means that the job begins at the first line of the script. That is never so where a complete
    checkpoint is there that cannot be read: people have to say so first."""
    if config.resume == "no":
        return []
    store = open_store(settings.where)
    try:
        found = complete_ones(store)
        if not found:
            _require_none_is_needed(config, settings)
            return []
        newest = _newest_that_is_whole(store, found, settings, skipped)
        _require_same_layout(config, newest)
        return [as_checkpoint(store, each) for each in (newest, *_older_ones(store, found, newest, config))]
    except OSError as error:
        raise ConfigError(f"durable={settings.where!r} cannot be read: {error}") from error


def _newest_that_is_whole(
    store: Store, found: Sequence[Manifest], settings: DurableSettings, skipped: Skipped
) -> Manifest:
    """Files may be gone since they were written. That bytes in them have changed is found when they are loaded."""
    damaged: list[tuple[str, int, str]] = []
    for manifest in found:
        if (missing := what_is_missing(store, manifest.name, manifest.files)) is None:
            for name, step, reason in damaged:
                skipped(name, step, reason)
            return manifest
        damaged.append((manifest.name, manifest.step, missing))
    reasons = "; ".join(f"{name}: {reason}" for name, _, reason in damaged)
    raise ConfigError(
        f"no checkpoint in {settings.where} can be read any more ({reasons}): mend them, or give another --durable or "
        "--resume no to begin from the first step"
    )


def _older_ones(store: Store, found: Sequence[Manifest], newest: Manifest, config: JobConfig) -> Iterator[Manifest]:
    """Yields whole checkpoints of earlier steps that have the same layout."""
    older = (each for each in found if each.step < newest.step and _same_layout(config, each))
    whole = (each for each in older if what_is_missing(store, each.name, each.files) is None)
    return itertools.islice(whole, OLDER_ONES)


def find_to_fall_back_to(config: JobConfig, settings: DurableSettings) -> Checkpoint | None:
    """Finds the checkpoint for a coordinator that takes over a job: the newest one that this job has written, or may
    have begun from.
    """
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
