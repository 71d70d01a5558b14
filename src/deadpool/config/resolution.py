"""How settings are read: flags over environment over file over defaults.

A file may have them in sections, [timeouts], node_timeout_s = 10, and help shows them in the same sections. A variable
of the environment that looks like ours and that nothing reads is told, since a misspelt one would be ignored silently.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from deadpool.config import environment as names
from deadpool.config.environment import PREFIX
from deadpool.config.job_config import SETTINGS, JobConfig, settings_for
from deadpool.config.values import AGENT, Setting, cast, read_toml
from deadpool.errors import ConfigError

FIRST = (
    *("nodes", "spares", "nproc_per_node", "standby_coordinators", "holders", "overhead_budget"),
    *("node_timeout_s", "durable", "resume", "dashboard"),
)
"""What most people ask for first. `--help` shows these, `--help-all` shows all."""

SECTIONS: dict[str, tuple[str, ...]] = {
    "job": ("nodes", "spares", "nproc_per_node", "standby_coordinators", "coordinators", "topology"),
    "snapshots": (
        *("holders", "protect", "slots", "capture_every", "overhead_budget", "set_aside_gb", "bulk_nice", "bulk_cpus"),
    ),
    "spares": ("rehearsals", "spare_trainers", "while_parked", "parked_state", "without_spare"),
    "recovery": (
        *("in_place", "rehearse_recovery", "on_inexact", "on_corruption", "audit_every"),
        "audit_spares_every",
        *("quarantine_after", "quarantine_window_s"),
        *("faults", "drills"),
    ),
    "timeouts": (
        *("node_timeout_s", "unwind_timeout_s", "prepare_timeout_s", "connect_timeout_s", "spare_wait_s"),
        *("isolation_timeout_s", "hang_timeout_s"),
    ),
    "adaptation": ("protect_at_most", "protect_dwell_s", "evict_ill", "health_root", "replace_stragglers"),
    "durable": (
        *("durable", "resume", "durable_every", "durable_bandwidth", "durable_nice", "durable_timeout_s"),
        *("durable_keep", "durable_keep_every"),
    ),
    "network": ("host", "interface", "port", "tls", "transport"),
    "views": (
        *("dashboard", "dashboard_at", "metrics_port", "metrics_host", "log_mb", "log_format", "on_event", "webhook"),
    ),
}
SECTION_OF = {name: section for section, inside in SECTIONS.items() for name in inside}

_LEAST_LIKENESS = 0.75
_OF_COMMANDS = ("RUN_DIR", "EVENT", "PARKED_")
"""Beginnings of those that hooks and the command of a parked spare get: they may run `deadpool` too."""


def flattened(values: Mapping[str, Any], path: object) -> dict[str, Any]:
    """The settings of a file with or without sections. A section named like a setting, as `durable`, is told by what it
    holds. ConfigError: a setting stands in another section than its own."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if not (isinstance(value, dict) and name in SECTIONS):
            flat[name] = value
            continue
        for inner, each in value.items():
            own = SECTION_OF.get(inner, name)
            if own != name:
                raise ConfigError(f"{path}: {inner} stands in [{name}], and belongs into [{own}]")
            if inner in flat:
                raise ConfigError(f"{path}: {inner} stands there twice: give it once")
            flat[inner] = each
    return flat


def resolve(
    flags: Mapping[str, Any],
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    settled: bool = False,
) -> JobConfig:
    """Flags that are None were not given. A job of one node has no other node to hold its copies. A recovery is played
    in jobs that people start, and not in those whose starter has planned faults of its own. `settled`: a launcher may
    have given all settings, also those that were left out."""
    variables = os.environ if environment is None else environment
    merged: dict[str, Any] = {**_from_file(file), **_from_environment(variables, SETTINGS)}
    merged.update({name: value for name, value in flags.items() if value is not None})
    if merged.get("host") and merged.get("interface"):
        raise ConfigError(
            f"host={merged['host']!r} and interface={merged['interface']!r} cannot be used together: give one of them"
        )
    holders = merged.get("holders")
    if merged.get("nodes", 1) == 1:
        merged.setdefault("holders", 0)
    merged.setdefault("rehearse_recovery", True)
    config = JobConfig(**merged).checked()
    if holders not in (None, config.scheme.copies) and not (settled and holders == JobConfig().holders):
        raise ConfigError(
            f"holders={holders} and protect={config.protect!r} cannot be used together: give one of them, as --protect "
            "says how many copies there are"
        )
    return config


def resolve_agent(flags: Mapping[str, Any], *, environment: Mapping[str, str] | None = None) -> JobConfig:
    """The settings of one agent. Where it is reached and how it encrypts are no settings of the job, so only flags say
    so: the environment of an agent may be that of a whole job."""
    variables = os.environ if environment is None else environment
    own = [each for each in settings_for(AGENT) if each.name not in ("host", "interface", "tls")]
    merged = _from_environment(variables, own)
    merged.update({each.name: flags[each.name] for each in own if flags.get(each.name) is not None})
    return JobConfig(holders=0, **merged).checked()


def _from_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    values = flattened(read_toml(path, "config file"), path)
    return {name: _cast(name, value, f"{path}: {name}") for name, value in values.items()}


def _from_environment(environment: Mapping[str, str], settings: Iterable[Setting]) -> dict[str, Any]:
    found = [each for each in settings if each.variable in environment]
    return {each.name: _cast(each.name, environment[each.variable], each.variable) for each in found}


def _cast(name: str, value: Any, shown: str) -> Any:
    """`shown` is what the user calls this setting."""
    kinds = {each.name: each.kind for each in SETTINGS}
    if name not in kinds:
        near = difflib.get_close_matches(name.replace("-", "_"), kinds, n=1)
        nearest = f" The nearest one is {near[0]};" if near else ""
        raise ConfigError(f"{shown} is not a setting.{nearest} `deadpool run --help-all` lists all")
    return cast(kinds[name], value, f"{shown}={value!r}")


def misspelt_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The nearest name of ours, by the name that was given. One that is near to none may be of somebody else."""
    known = {each.variable.removeprefix(PREFIX) for each in SETTINGS}
    known |= {value.removeprefix(PREFIX) for name, value in vars(names).items() if name.endswith("_VARIABLE")}
    found = {}
    for variable in sorted(variables):
        word = variable.removeprefix(PREFIX)
        if not variable.startswith(PREFIX) or word in known or word.startswith(_OF_COMMANDS):
            continue
        if near := difflib.get_close_matches(word, known, n=1, cutoff=_LEAST_LIKENESS):
            found[variable] = PREFIX + near[0]
    return found
