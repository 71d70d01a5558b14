"""Which way copies take from and to a node, by what was asked for and by what is there."""

from __future__ import annotations

import pytest

from deadpool.config.resolution import resolve
from deadpool.control.agent import transports
from deadpool.control.agent.transports import Way, chosen_way
from deadpool.errors import ConfigError
from deadpool.host.rdma import rdma_devices


@pytest.fixture
def machine(monkeypatch):
    """Sets what a machine has: these are files and packages that this one may lack."""

    def have(*, device: bool, package: bool) -> None:
        monkeypatch.setattr(transports, "rdma_devices", lambda: ["mlx5_0"] if device else [])
        monkeypatch.setattr(transports, "nixl_build", lambda: "nixl_cu13" if package else None)

    return have


@pytest.mark.parametrize(
    ("device", "package", "encrypted", "way"),
    [
        (True, True, False, Way.NIXL),
        (True, True, True, Way.TCP),
        (True, False, False, Way.TCP),
        (False, True, False, Way.TCP),
    ],
)
def test_auto_takes_what_is_there(machine, device, package, encrypted, way):
    machine(device=device, package=package)
    assert chosen_way("auto", encrypted=encrypted) is way


def test_what_is_asked_for_is_taken(machine):
    machine(device=True, package=True)
    assert chosen_way("tcp", encrypted=False) is Way.TCP
    machine(device=False, package=True)
    assert chosen_way("nixl", encrypted=False) is Way.NIXL


def test_nixl_that_is_missing_is_named_with_its_cure(machine):
    machine(device=True, package=False)
    with pytest.raises(
        ConfigError, match=r"transport='nixl' needs the package nixl: pip install 'torch-deadpool\[rdma"
    ):
        chosen_way("nixl", encrypted=False)


def test_nixl_is_refused_where_copies_are_encrypted(machine):
    machine(device=True, package=True)
    with pytest.raises(ConfigError, match="transport='nixl' cannot be used with tls"):
        chosen_way("nixl", encrypted=True)
    with pytest.raises(ConfigError, match="transport='nixl' cannot be used: give tcp or auto with tls"):
        resolve({"transport": "nixl", "tls": "ephemeral"}, environment={})


def test_other_words_are_refused():
    with pytest.raises(ConfigError, match="transport='rdma' cannot be used: give one of auto, tcp, nixl"):
        resolve({"transport": "rdma"}, environment={})


def test_devices_are_those_that_the_kernel_shows(tmp_path):
    assert rdma_devices(tmp_path / "infiniband") == []
    (tmp_path / "infiniband" / "mlx5_1").mkdir(parents=True)
    (tmp_path / "infiniband" / "mlx5_0").mkdir()
    assert rdma_devices(tmp_path / "infiniband") == ["mlx5_0", "mlx5_1"]
