"""What a node's files, kernel log and GPUs say of its health. The test writes the files, below a root of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from deadpool.chaos.health_files import CORRECTABLE_ERRORS, LINK_FAILURES, UNCORRECTABLE_ERRORS, XID, HealthFiles
from deadpool.control.health_watch import HealthWatch
from deadpool.health.kernel_log import KernelLog, classify
from deadpool.health.sampling import NodeSampler, Totals
from deadpool.protocol import health
from deadpool.protocol.health import HealthSample

STAND_IN = Path(__file__).parent.parent / "clusters" / "doctor" / "fake_nvml.c"


@pytest.fixture
def files(tmp_path):
    made = HealthFiles(tmp_path)
    made.make_well("n0")
    return made


@pytest.fixture
def sampler(files):
    found = NodeSampler(files.folder / "n0")
    found.look()
    yield found
    found.close()


def test_well_node_has_no_errors_and_memory_left(sampler):
    sample = sampler.look()
    assert not any(sample.counters.values())
    assert sample.gauges == {health.MEMORY_PRESSURE: 0.0, health.MEMORY_LOW: 0.5}
    assert (sample.memory_bytes, sample.available_bytes) == (64 << 30, 32 << 30)


@pytest.mark.parametrize(
    ("counter", "kind"),
    [
        (CORRECTABLE_ERRORS, health.CORRECTABLE),
        (UNCORRECTABLE_ERRORS, health.UNCORRECTABLE),
        (LINK_FAILURES, health.LINK_RESETS),
        ("sys/class/net/eth0/statistics/rx_errors", health.LINK_ERRORS),
    ],
)
def test_counters_grow(files, sampler, counter, kind):
    files.count("n0", counter, 7)
    files.count("n0", counter, 5)
    assert sampler.look().counters[kind] == 12


def test_processes_killed_for_lack_of_memory_and_pressure(files, sampler):
    (files.folder / "n0/proc/vmstat").write_text("nr_free_pages 5\noom_kill 2\n")
    files.set_pressure("n0", 33.0)
    sample = sampler.look()
    assert sample.counters[health.OOM] == 2 and sample.gauges[health.MEMORY_PRESSURE] == 33.0


def test_errors_from_before_the_agent_began_do_not_count(files):
    files.count("n0", CORRECTABLE_ERRORS, 1000)
    files.log("n0", XID)
    sampler = NodeSampler(files.folder / "n0")
    assert not any(sampler.look().counters.values())
    files.log("n0", XID)
    sample = sampler.look()
    sampler.close()
    assert sample.counters[health.XID] == 1 and "Xid 79" in sample.details[health.XID]


def test_device_that_was_reset_takes_nothing_back():
    totals = Totals()
    for total in (100, 130, 0, 5):
        totals.add([("errors", "GPU 0", total)])
    assert totals.by_kind == {"errors": 35}


def test_sources_that_are_not_there_say_nothing(tmp_path):
    sampler = NodeSampler(tmp_path / "nothing")
    assert sampler.look() == HealthSample(counters={health.OOM: 0})
    sampler.close()


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("3,1,1,-;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", health.XID),
        ("3,1,1,-;NVRM: Xid (PCI:0000:01:00): 31, pid=7, name=python, MMU Fault", None),
        ("2,1,1,-;{1}[Hardware Error]: event severity: fatal", health.UNCORRECTABLE),
        ("2,1,1,-;{1}[Hardware Error]: event severity: corrected", health.CORRECTABLE),
        ("2,1,1,-;mce: CPU3: CMCI storm detected: switching to poll mode", health.CORRECTABLE),
        ("4,1,1,-;NETDEV WATCHDOG: eth0 (ixgbe): transmit queue 3 timed out", health.LINK_RESETS),
        ("3,1,1,-;mlx5_core 0000:3b:00.0: device's health compromised", health.LINK_RESETS),
        ("6,1,1,-;ixgbe 0000:01:00.0 eth0: NIC Link is Down", health.LINK_RESETS),
        ("6,1,1,-;ixgbe 0000:01:00.0 eth0: NIC Link is Up 10 Gbps", None),
    ],
)
def test_lines_of_the_kernels_log(line, kind):
    found = classify(line)
    assert (found.kind if found is not None else None) == kind


def test_log_that_is_written_in_halves_and_appears_later(tmp_path):
    log = KernelLog(tmp_path)
    assert log.new_lines() == []
    (tmp_path / "dev").mkdir()
    path = tmp_path / "dev/kmsg"
    path.write_text("one\ntw")
    assert log.new_lines() == ["one"]
    with path.open("a") as file:
        file.write("o\n")
    assert log.new_lines() == ["two"] and log.new_lines() == []
    log.close()


def test_watch_reports_from_a_thread_and_ends(files):
    seen, grown = [], threading.Event()

    def report(sample):
        seen.append(sample)
        if sample.counters.get(health.CORRECTABLE):
            grown.set()
        else:
            files.count("n0", CORRECTABLE_ERRORS, 50)

    watch = HealthWatch(files.folder / "n0", report, look_every_s=0.01)
    watch.start()
    assert grown.wait(10)
    watch.close()
    assert threading.current_thread() is threading.main_thread() and len(seen) >= 2


@pytest.mark.parametrize(
    ("state", "counters", "gauges"),
    [
        ("sound", [0, 0, 0, 0], [0.0, 0.0]),
        ("ecc", [0, 0, 0, 3], [0.0, 0.0]),
        ("hot", [0, 0, 0, 0], [1.0, 0.0]),
        ("power-capped", [0, 0, 0, 0], [0.0, 0.0]),
    ],
)
def test_gpus_through_the_real_package(tmp_path, state, counters, gauges):
    """With a library in place of the driver's, of which the second GPU is ill."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed: pip install 'torch-deadpool[doctor]'")
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler for the stand-in of NVML")
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", str(library), str(STAND_IN)], check=True, timeout=60)
    code = (
        "import json; from deadpool.health.gpus import open_gpus; gpus = open_gpus(); "
        "gauges = [value for _, value, _ in gpus.gauges()]; "
        "print(json.dumps([[total for _, _, total in gpus.counters()], gauges[-2:]]))"
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "FAKE_NVML": state}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert json.loads(ran.stdout) == [counters, gauges], ran.stderr
