"""What the values of a job's settings have to be, each by itself and beside the others.

A value that cannot work is refused before any process is started, in a sentence that names the setting, its value and
what would be accepted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from deadpool.config.orders import parse_order
from deadpool.config.values import Setting, parse_bandwidth, parse_bounds, parse_cpus, parse_period
from deadpool.errors import ConfigError
from deadpool.protocol.identity import LAST_PORT, Address

if TYPE_CHECKING:
    from deadpool.config.job_config import JobConfig

AUTO_TRANSPORT, TCP, NIXL = TRANSPORTS = ("auto", "tcp", "nixl")
LOG_FORMATS = ("text", "json")
RESUME = ("no", "auto", "must")
AUTO = "auto"  # --protect: the job chooses
PARKED_STATE = ("keep", "free")
WITHOUT_SPARE = ("wait", "shrink")
IN_PLACE = ("auto", "always", "never")
ON_INEXACT = ("warn", "stop")
ON_CORRUPTION = ("stop", "go-on", "ignore")


def require(name: str, value: Any, good: bool, accepted: str) -> None:
    if not good:
        raise ConfigError(f"{name}={value!r} cannot be used: give {accepted}")


def check_values(config: JobConfig, settings: Iterable[Setting]) -> None:
    """Raises ConfigError where one of the values cannot work, alone or beside the others."""
    for each in settings:
        value = getattr(config, each.name)
        require(each.name, value, each.kind != "float" or math.isfinite(value), "a finite number")
    for name in ("nodes", "nproc_per_node", "capture_every", "rehearsals"):
        require(name, getattr(config, name), getattr(config, name) >= 1, "a number of at least 1")
    for name in ("spares", "holders", "spare_trainers", "standby_coordinators", "quarantine_after"):
        require(name, getattr(config, name), getattr(config, name) >= 0, "a number of at least 0")
    enough = config.slots == 0 or config.slots >= 2
    require("slots", config.slots, enough, "at least 2: one kept, one being written; or 0: as many as are needed")
    enough = config.holders < config.nodes
    require("holders", config.holders, enough, f"less than {config.nodes}, the number of nodes: copies lie on others")
    _check_scheme(config)
    require("node_timeout_s", config.node_timeout_s, config.node_timeout_s >= 1, "at least 1 second")
    bounds_of_protection(config)
    _check_coordinators(config)
    hang, beats = config.hang_timeout_s, 2 * config.heartbeat_s
    accepted = f"0 or at least {beats:g} s, which is two heartbeats; 0 is the default, which follows the step time"
    require("hang_timeout_s", hang, hang == 0 or hang >= beats, accepted)
    budget = config.overhead_budget
    require("overhead_budget", budget, 0 <= budget < 1, "a share of the step time: 0.005 is 0.5 %, 0 is no limit")
    require("set_aside_gb", config.set_aside_gb, 0 <= config.set_aside_gb < 1e6, "a size in GB, or 0 for none")
    last = config.metrics_port_of(config.nodes + config.spares + config.standby_coordinators)
    usable = config.metrics_port >= 0 and last <= LAST_PORT
    accepted = "a port that leaves one below 65536 for each process, counted from it on, or 0 for no metrics"
    require("metrics_port", config.metrics_port, usable, accepted)
    window = config.quarantine_window_s
    require("quarantine_window_s", window, window > 0, "a time of more than 0 s")
    _check_shrinking(config)
    require("in_place", config.in_place, config.in_place in IN_PLACE, f"one of {', '.join(IN_PLACE)}")
    found = config.on_inexact
    require("on_inexact", found, found in ON_INEXACT, f"one of {', '.join(ON_INEXACT)}")
    found = config.on_corruption
    require("on_corruption", found, found in ON_CORRUPTION, f"one of {', '.join(ON_CORRUPTION)}")
    every, acts = config.audit_every, config.on_corruption != "ignore"
    accepted = "a number of steps, or 0 for none" + ("" if acts else "; with --on-corruption ignore only 0")
    require("audit_every", every, every == 0 or (every > 0 and acts), accepted)
    every = config.audit_spares_every
    require("audit_spares_every", every, every >= 0, "a number of audits, or 0 for none")
    parked = config.parked_state
    require("parked_state", parked, parked in PARKED_STATE, f"one of {', '.join(PARKED_STATE)}")
    require("log_mb", config.log_mb, config.log_mb >= 0, "a size in MB, or 0 for no limit")
    require("log_format", config.log_format, config.log_format in LOG_FORMATS, f"one of {', '.join(LOG_FORMATS)}")
    require("bulk_nice", config.bulk_nice, 0 <= config.bulk_nice <= 19, "a number of 0 to 19")
    parse_cpus(config.bulk_cpus)
    _check_transport(config)
    config.hook_rules()
    require("port", config.port, 0 <= config.port <= LAST_PORT, f"a port of at most {LAST_PORT}, or 0 for any free one")
    page = config.dashboard_at
    require("dashboard_at", page, Address.is_one(page), f"HOST:PORT with a port of at most {LAST_PORT}")
    _check_durable(config)
    for text in config.faults:
        order, world_size = parse_order(text), config.nodes * config.nproc_per_node
        rank = order.rank
        require("fault", text, config.drills or order.flip is None, "a fault that changes no state, or --drills too")
        fits = rank is None or 0 <= rank < world_size
        require(f"fault {text!r}: rank", rank, fits, f"a rank of 0 to {world_size - 1}")


def _check_transport(config: JobConfig) -> None:
    way, plain = config.transport, config.tls == "off"
    require("transport", way, way in TRANSPORTS, f"one of {', '.join(TRANSPORTS)}")
    accepted = "tcp or auto with tls: what NIXL reads is not encrypted (docs/security.md)"
    require("transport", way, way != NIXL or plain, accepted)


def _check_scheme(config: JobConfig) -> None:
    try:
        losses = config.scheme.losses
    except ValueError:
        losses = config.nodes
    accepted = f"auto, copies=N or rs(K,M) with N or M less than nodes={config.nodes}, and M at most K"
    require("protect", config.protect, not config.protect or losses < config.nodes, accepted)


def _check_shrinking(config: JobConfig) -> None:
    then, waits = config.without_spare, config.without_spare == "wait"
    require("without_spare", then, then in WITHOUT_SPARE, "wait or shrink")
    alone = not config.standby_coordinators and "," not in config.coordinators
    require("without_spare", then, waits or alone, "wait: a job with several coordinators cannot shrink")
    accepted = f"wait: a job whose snapshots are coded, by protect={config.protect!r}, cannot shrink (copies=N can)"
    require("without_spare", then, waits or not config.scheme.in_groups, accepted)


def _check_durable(config: JobConfig) -> None:
    parse_period(config.durable_every)
    parse_bandwidth(config.durable_bandwidth)
    for name in ("durable_keep", "durable_keep_every"):
        require(name, getattr(config, name), getattr(config, name) >= 0, "a number of at least 0")
    require("durable_nice", config.durable_nice, 0 <= config.durable_nice <= 19, "a number of 0 to 19")
    timeout = config.durable_timeout_s
    require("durable_timeout_s", timeout, timeout > 0, "a time of more than 0 s")
    require("resume", config.resume, config.resume in RESUME, f"one of {', '.join(RESUME)}")
    where = config.durable
    require("durable", where, bool(where) or config.resume == "no", "a directory or URL: --resume begins from it")


def _check_coordinators(config: JobConfig) -> None:
    """One of several coordinators may act only with most of the nodes that ran, and most of two nodes are both."""
    several = max(config.standby_coordinators, len(config.coordinator_places) - 1)
    accepted = "0 with fewer than 3 nodes: a coordinator may act only with most of the nodes that ran"
    require("standby_coordinators", several, several == 0 or config.nodes > 2, accepted)
    for place in config.coordinator_places:
        require("coordinators", place, Address.is_one(place), "HOST:PORT of each, separated by commas")


def bounds_of_protection(config: JobConfig) -> dict[str, float] | None:
    """None: protection stays as it is. Raises ConfigError where the bounds cannot be used."""
    dwell_s = config.protect_dwell_s
    require("protect_dwell_s", dwell_s, dwell_s > 0, "a time of more than 0 s")
    if not config.protect_at_most and not config.evict_ill and config.protect != AUTO:
        return None
    least = config.scheme.copies
    default = min(least + 1, max(least, config.nodes - 1)) if config.protect == AUTO else least
    bounds = {"copies": float(default), "memory": 0.5, "every": 0.0} | parse_bounds(config.protect_at_most)
    accepted = f"copies of at least the {least} that there are anyway, and fewer than nodes={config.nodes}"
    fits = least <= bounds["copies"] <= max(least, config.nodes - 1)
    require("protect_at_most", config.protect_at_most, fits, accepted)
    _check_coded_bound(config)
    return bounds


def _check_coded_bound(config: JobConfig) -> None:
    coded, asked, given = config.coded_bound, config.scheme, config.protect_at_most
    if coded is None:
        return
    require("protect_at_most", given, not asked.in_groups, f"no rs(K,M) beside protect={config.protect!r}")
    fits = coded.losses >= asked.losses and coded.losses < config.nodes
    accepted = f"rs(K,M) with M of at least {asked.losses} and less than nodes={config.nodes}: as many losses as "
    require("protect_at_most", given, fits, f"{accepted}{asked} survives")
    saves = coded.held_share(config.nodes) < asked.held_share(config.nodes)
    require("protect_at_most", given, saves, f"rs(K,M) that takes less memory on {config.nodes} nodes than {asked}")
    stays = config.without_spare == "wait"
    require("protect_at_most", given, stays, "no rs(K,M) beside without_spare=shrink, which needs whole copies")
