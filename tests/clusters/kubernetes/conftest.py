"""Tests that need the testbed are run by `scripts/testbed kubernetes test` only: they take minutes."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pytest
from kube_cluster import Cluster, why_not
from kube_job import FAILED

_LIFETIME_S = 3600.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kubernetes", action="store_true", help="run the tests on the Kubernetes testbed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--kubernetes", default=False)
    reason = why_not() if wanted else "runs with scripts/testbed kubernetes test"
    for item in items:
        if item.get_closest_marker("kubernetes") and reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Fixtures that clean up want to know whether there is something to look at first."""
    result = yield
    if result.when == "call":
        item.stash[FAILED] = bool(result.failed)
    return result


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest) -> None:
    """The testbed's own processes come and go, as its machines do. What is left of it at the end is looked at there."""
    if request.node.get_closest_marker("kubernetes") is None:
        request.getfixturevalue("leaves_nothing_behind")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One for all tests: its nodes are whole again after each."""
    made = Cluster.start(5, lifetime_s=_LIFETIME_S)
    yield made
    made.down()
    assert made.remains() == []
