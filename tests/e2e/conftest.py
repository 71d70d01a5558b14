from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gated_job import EVERY_STEP, GatedJob, run_unprotected
from unprotected import start_forkserver

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import Results, differences

TIMEOUT_S = 1200
"""It bounds only a test that fails, and comes after the limits of what it waits for: those say what did not come."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Results]:
    """What an undisturbed, unprotected run gives; each kind is run once."""
    known: dict[tuple[str, int], Results] = {}

    def get(layout: str, world_size: int) -> Results:
        if (layout, world_size) not in known:
            folder = tmp_path_factory.mktemp("reference") / f"{layout}-{world_size}"
            known[layout, world_size] = run_unprotected(layout, world_size, folder)
        return known[layout, world_size]

    return get


# torch looks up the name of each peer that a TCPStore talks to; a lost answer of the name server costs 5 s.
os.environ["RES_OPTIONS"] = "attempts:0"


@pytest.fixture(scope="session", autouse=True)
def warm() -> None:
    start_forkserver()


@pytest.fixture(scope="session")
def fork_server() -> Iterator[SharedForkServer]:
    """For all jobs of the session: torch is imported once, and so is what agents and coordinators need."""
    shared = SharedForkServer(forks_commands=True)
    yield shared
    shared.close()


@pytest.fixture
def strange_fork_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedForkServer]:
    """Of a torch that lacks something (tests/strange_torch.py)."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("STRANGE_TORCH", "lack_an_attribute")
    shared = SharedForkServer(("strange_torch",))
    yield shared
    shared.close()


@pytest.fixture
def make_gated_job(tmp_path: Path, fork_server: SharedForkServer) -> Callable[..., GatedJob]:
    def make(layout: str = "fsdp2", acts: str = "", **config: object) -> GatedJob:
        settings = {"nodes": 2, "spares": 1, **EVERY_STEP, **config}
        return GatedJob(JobConfig(**settings).checked(), layout, acts, tmp_path, fork_server)

    return make


@pytest.fixture
def run_and_compare(reference: Callable[[str, int], Results]) -> Callable[..., Results]:
    """Runs a job to its end and compares it, bit for bit, with the undisturbed run."""

    def run(gated: GatedJob, during: Callable[[], None]) -> Results:
        results = gated.trial.run(lambda _: during())
        world_size = gated.config.nodes * gated.config.nproc_per_node
        assert differences(reference(gated.layout, world_size), results) == []
        return results

    return run
