"""Where the agents of a job may be: one bundle of resources on each of so many Ray nodes."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from deadpool.errors import ConfigError
from deadpool.wire.interfaces import address_of


def check_driver(interface: str) -> str:
    """The address at which agents reach the driver's machine. Connects to Ray if that was not done yet."""
    try:
        ray: Any = importlib.import_module("ray")
        util: Any = importlib.import_module("ray.util")
    except ImportError as error:
        raise ConfigError("deadpool.ray.run needs Ray: pip install 'torch-deadpool[ray]' on every node") from error
    if util.client.ray.is_connected():
        raise ConfigError(
            "deadpool.ray.run cannot be used over ray://: nodes have to reach the machine of the driver. Run the "
            "driver inside the cluster, as `ray job submit` does"
        )
    if not ray.is_initialized():
        ray.init()
    return address_of(interface) if interface else str(util.get_node_ip_address())


@contextlib.contextmanager
def placed(count: int, bundle: dict[str, float], wait_s: float) -> Iterator[Any]:
    """A placement group on `count` different nodes. Ray finds another node for a bundle whose node dies."""
    ray: Any = importlib.import_module("ray")
    groups: Any = importlib.import_module("ray.util.placement_group")
    group = groups.placement_group([bundle] * count, strategy="STRICT_SPREAD", name="deadpool")
    try:
        if not group.wait(timeout_seconds=wait_s):
            alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            raise ConfigError(
                f"Ray has no {count} different nodes with {bundle} free within {wait_s:g} s; its {len(alive)} nodes "
                f"have {alive}: add nodes, ask for fewer, or give other `resources`"
            )
        yield group
    finally:
        with contextlib.suppress(Exception):  # the cluster may be what has ended
            groups.remove_placement_group(group)
