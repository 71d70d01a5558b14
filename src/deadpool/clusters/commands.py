"""The command lines of the processes that a launcher starts on other machines, as words after `deadpool`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from deadpool.config.job_config import JobConfig, settings_for
from deadpool.config.values import AGENT, COORDINATOR
from deadpool.wire.credentials import settled


def coordinator_words(
    config: JobConfig, *, host: str, port: int, places: Sequence[str], run_dir: Path, faults: bool
) -> list[str]:
    """`places` are HOST:PORT of all coordinators if there are several. Faults are injected by the first start only."""
    own = {"host": host, "port": port, "interface": "", "coordinators": ",".join(places) if len(places) > 1 else ""}
    values = {**dataclasses.asdict(config), **own, "faults": config.faults if faults else ()}
    words = [word for each in settings_for(COORDINATOR) for word in each.words(values[each.name])]
    return ["coordinator", f"--run-dir={run_dir}", *words]


def agent_words(
    config: JobConfig,
    script: Sequence[str],
    *,
    name: str,
    host: str | None,
    places: Sequence[str],
    logs: Path,
    spare: bool,
    rack: str | None = None,
    preload: Sequence[str] = (),
) -> list[str]:
    """Builds the command line of an agent. Without a host the agent finds its address itself: that of the interface, or
    the one that leads to the coordinator."""
    own = {"host": host or "", "interface": "" if host else config.interface, "tls": settled(config.tls)}
    own_port = {"metrics_port": config.metrics_port_of(1)}  # a coordinator may run on the same machine
    values = {**dataclasses.asdict(config), **own, **own_port}
    words = [word for each in settings_for(AGENT) for word in each.words(values[each.name])]
    words += [f"--join={','.join(places)}", f"--name={name}", f"--logs={logs}"]
    words += [f"--rack={rack}"] if rack is not None else []
    words += [f"--preload={package}" for package in preload]
    words += ["--spare"] if spare else []
    return ["agent", *words, "--", *script]
