"""How a coordinator in a pod finds its place and its name, and what it writes. The rest is tested on the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from deadpool.clusters.kubernetes.job_state import JobStateStore
from deadpool.clusters.kubernetes.pods import await_own_name, place
from deadpool.config.job_config import JobConfig
from deadpool.errors import ConfigError

PLACES = JobConfig(nodes=3, coordinators="t-coordinator-0.t:29400,t-coordinator-1.t:29400")


def test_place_is_that_of_the_index() -> None:
    own = place(PLACES, 1)
    assert (own.host, own.port) == ("t-coordinator-1.t", 29400)
    with pytest.raises(ConfigError, match="index=2"):
        place(PLACES, 2)


def test_name_that_leads_to_another_pod_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_IP", "127.0.0.1")
    await_own_name("localhost", 1.0)
    monkeypatch.setenv("POD_IP", "10.1.2.3")
    with pytest.raises(ConfigError, match=r"localhost.*127\.0\.0\.1.*10\.1\.2\.3"):
        await_own_name("localhost", 0.3)


class Api:
    """The twin of a client of lightkube with one ConfigMap and one Deployment."""

    def __init__(self) -> None:
        self.data: dict[str, str] = {}
        self.replicas = 4
        self.order: list[str] = []

    def get(self, kind: Any, name: str) -> Any:
        assert name == "t-state"
        return type("ConfigMap", (), {"data": dict(self.data)})()

    def patch(self, kind: Any, name: str, change: dict[str, Any], **_: Any) -> None:
        if name == "t-state":
            self.data |= change["data"]
        elif name == "t-agents":
            self.replicas = change["spec"]["replicas"]
        else:
            assert change == {"spec": {"backoffLimit": 0}}
        self.order.append(name)


def test_outcome_is_written_before_agents_go() -> None:
    pytest.importorskip("lightkube")
    api = Api()
    store = JobStateStore("t", api)  # type: ignore[arg-type]
    assert not store.read().begun
    store.note_begun("t-coordinator-0-x")
    assert store.read().begun and not store.read().outcome
    store.note_end(failed=True, reason="no spare", coordinators=2)
    assert api.replicas == 0
    assert api.order[-4:] == ["t-state", "t-agents", "t-coordinator-0", "t-coordinator-1"]
    assert (store.read().exit_code, store.read().reason) == (1, "no spare")
    store.note_end(failed=False, reason="all ranks ended", coordinators=2)
    assert store.read().exit_code == 0 and api.order[-1] == "t-agents"


def test_standby_ends_as_the_job_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is dismissed before the end is noted."""
    pytest.importorskip("lightkube")
    api = Api()
    store = JobStateStore("t", api)  # type: ignore[arg-type]
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            store.note_end(failed=True, reason="no data", coordinators=2)

    monkeypatch.setattr("deadpool.clusters.kubernetes.job_state.time.sleep", sleep)
    assert store.await_end().exit_code == 1 and len(waited) == 2
