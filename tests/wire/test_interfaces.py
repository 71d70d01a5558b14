from __future__ import annotations

import pytest

from deadpool.cli.start.addresses import at_interface, own_address
from deadpool.config.job_config import JobConfig
from deadpool.errors import ConfigError
from deadpool.protocol.identity import Address
from deadpool.wire.deadline import address_of, address_towards, collective_variables

HERE = Address(host="127.0.0.1", port=1234)


def test_interface_gives_its_address():
    assert address_of("lo") == "127.0.0.1"
    assert at_interface(JobConfig(interface="lo", host="10.0.0.1")).host == "127.0.0.1"
    assert at_interface(JobConfig()).host == "127.0.0.1"


def test_unknown_interface_is_refused_with_the_list():
    with pytest.raises(ConfigError, match=r"interface='wlan9' is not one .*: give one of .*lo \(127.0.0.1\)"):
        address_of("wlan9")


def test_agent_listens_where_the_coordinator_is_reached_from_unless_told():
    assert address_towards(HERE) == "127.0.0.1"
    assert own_address(None, None, HERE) == "127.0.0.1"
    assert own_address("10.1.2.3", None, HERE) == "10.1.2.3"
    assert own_address(None, "lo", HERE) == "127.0.0.1"
    with pytest.raises(ConfigError, match="give one of them"):
        own_address("10.1.2.3", "lo", HERE)


def test_nccl_keeps_to_the_interface_too():
    assert collective_variables("eth0") == {"NCCL_SOCKET_IFNAME": "=eth0"}
    assert collective_variables("") == {}
