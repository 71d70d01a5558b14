"""The sections of the settings, as help shows them and as a file may have them: [timeouts], node_timeout_s = 10."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
        "in_place",
        "rehearse_recovery",
        "on_inexact",
        "on_corruption",
        "quarantine_after",
        "quarantine_window_s",
        "faults",
        "drills",
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
    "network": ("host", "interface", "port", "tls"),
    "views": (
        *("dashboard", "dashboard_at", "metrics_port", "metrics_host", "log_mb", "log_format", "on_event", "webhook"),
    ),
}
SECTION_OF = {name: section for section, names in SECTIONS.items() for name in names}


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
