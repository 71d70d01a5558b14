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
from waiting import LIMIT_S, wait_until

from deadpool.control.trainers import health_watch
from deadpool.control.trainers.health_watch import HealthWatch
from deadpool.host.health.kernel import KernelLog, classify
from deadpool.host.health.sampling import NodeSampler, Totals
from deadpool.protocol import health
from deadpool.protocol.health import HealthSample
from deadpool_lab.chaos.surroundings.health_files import (
    CORRECTABLE_ERRORS,
    LINK_FAILURES,
    UNCORRECTABLE_ERRORS,
    XID,
    HealthFiles,
)

STAND_IN = Path(__file__).parents[2] / "doctor" / "fake_nvml.c"


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


def test_watch_reports_from_a_thread_and_ends(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)  # NVIDIA's library keeps descriptors after it was shut down
    seen, grown = [], threading.Event()

    def report(sample):
        seen.append(sample)
        if sample.counters.get(health.CORRECTABLE):
            grown.set()
        else:
            files.count("n0", CORRECTABLE_ERRORS, 50)

    watch = HealthWatch(files.folder / "n0", report, print, look_every_s=0.01)
    watch.start()
    assert grown.wait(LIMIT_S)
    watch.close()
    assert threading.current_thread() is threading.main_thread() and len(seen) >= 2


def test_look_that_fails_is_told_once_and_makes_no_gpu_silent(files, monkeypatch):
    """A driver that is silent for a minute is LIKELY to be broken, and would have the node drained."""
    looks, told, failed = [], [], []

    class Broken:
        def buses_of_others(self):
            return frozenset()

        def counters(self):
            looks.append(1)
            if len(looks) > 1:
                raise AttributeError("no such figure in this version of the package")
            return [(health.CORRECTABLE, "GPU 0", 5)]

        def gauges(self):
            return [(health.HOT, 1.0, "GPU 0")]

        def close(self):
            looks.append("closed")

    monkeypatch.setattr(health_watch, "open_gpus", Broken)
    monkeypatch.setattr(health_watch, "SILENT_S", 0.0)
    watch = HealthWatch(files.folder / "n0", told.append, lambda *it: failed.append(it), look_every_s=0.01)
    watch.start()
    wait_until(lambda: len(looks) > 3, "further looks")
    known = len(told)
    wait_until(lambda: len(told) > known + 1, "a look after them")
    watch.close()
    assert looks[-1] == "closed" and failed == [
        ("GPUs", "AttributeError: no such figure in this version of the package")
    ]
    assert told[-1].gauges.keys() == {health.MEMORY_PRESSURE, health.MEMORY_LOW}
    assert told[-1].counters[health.CORRECTABLE] == 0  # as before: what has been counted is not counted again


def test_files_that_cannot_be_understood_end_no_watch(files):
    told, failed = [], []
    (files.folder / "n0/proc/pressure/memory").write_text("full avg60\n")
    watch = HealthWatch(files.folder / "n0", told.append, lambda *it: failed.append(it), look_every_s=0.01)
    watch.start()
    wait_until(lambda: failed, "the failure")
    files.set_pressure("n0", 33.0)
    wait_until(lambda: told, "a look")
    watch.close()
    assert [source for source, _ in failed] == ["files"]


def test_bridges_and_other_cards_without_a_device_do_not_count(files, sampler):
    for name in ("docker0", "veth12", "lo"):
        for counter in ("carrier_down_count", "statistics/rx_errors"):
            path = files.folder / "n0/sys/class/net" / name / counter
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("0\n")
    sampler.look()
    for name in ("docker0", "veth12", "lo"):
        files.count("n0", f"sys/class/net/{name}/carrier_down_count", 7)
        files.count("n0", f"sys/class/net/{name}/statistics/rx_errors", 100)
    counters = sampler.look().counters
    assert (counters[health.LINK_RESETS], counters[health.LINK_ERRORS]) == (0, 0)


def test_xid_of_a_gpu_that_another_job_uses_does_not_count(files, sampler):
    sampler.buses_of_others = frozenset({"0000:01:00"})
    files.log("n0", XID)
    assert health.XID not in sampler.look().counters
    sampler.buses_of_others = frozenset({"0000:3b:00"})
    files.log("n0", XID)
    assert sampler.look().counters[health.XID] == 1


def test_lost_gpu_is_certain_to_have_failed():
    assert [rule.grade for rule in health.GAUGES if rule.kind == health.GPU_LOST] == [health.CERTAIN]


# --- NVML, with a library in place of the driver's, of which the second GPU is ill ------------------------------------


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed: pip install 'torch-deadpool[doctor]'")
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler for the stand-in of NVML")
    folder = tmp_path_factory.mktemp("nvml")
    words = ["cc", "-shared", "-fPIC", "-w", "-o", str(folder / "libnvidia-ml.so.1"), str(STAND_IN)]
    subprocess.run(words, check=True, timeout=LIMIT_S)
    return folder


LOOK = """
import json
from deadpool.host.health.gpus import open_gpus
from deadpool.host.health.sampling import GpuSampler
gpus = open_gpus()
if gpus is None:
    print(json.dumps(None))
else:
    totals = {}
    for kind, source, total in gpus.counters():
        totals.setdefault(source, []).append(total)
    sampler = GpuSampler(gpus)
    sampler.look()
    sample = sampler.look()
    print(json.dumps([totals, sample.gauges, sample.details, sorted(gpus.buses_of_others())]))
"""


def look(library, state, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    environment |= {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": state, **variables}
    ran = subprocess.run([sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize(
    ("state", "errors", "shown"),
    [
        ("sound", 0, None),
        ("ecc", 3, None),
        ("hot", 0, health.HOT),
        ("power-capped", 0, None),
        ("falls", 0, health.GPU_LOST),
    ],
)
def test_gpus_through_the_real_package(library, state, errors, shown):
    totals, gauges, details, others = look(library, state)
    assert totals == {"GPU 0": [0, 0], "GPU 1": [0, errors]} and others == []
    assert gauges == {kind: float(kind == shown) for kind in (health.HOT, health.THROTTLED, health.GPU_LOST)}
    assert [details[kind].startswith("GPU 1 ") for kind in details] == [True] * (shown is not None)


def test_gpu_that_is_lost_from_the_beginning_is_lost(library):
    totals, gauges, details, _ = look(library, "lost")
    assert totals == {"GPU 0": [0, 0]} and gauges[health.GPU_LOST] == 1.0 and "GPU 1" in details[health.GPU_LOST]


@pytest.mark.parametrize(
    ("visible", "seen", "others"),
    [
        ("0", ["GPU 0"], ["0000:3b:00"]),
        ("1", ["GPU 1"], ["0000:1a:00"]),
        ("1,0", ["GPU 0", "GPU 1"], []),
        ("0,-1,1", ["GPU 0"], ["0000:3b:00"]),
        ("GPU-bbbb", ["GPU 1"], ["0000:1a:00"]),
        ("MIG-cccc-3333", ["GPU 1"], ["0000:1a:00"]),
        ("MIG-GPU-aaaa-1111/7/0", ["GPU 0"], ["0000:3b:00"]),
        ("GPU-dddd", ["GPU 0", "GPU 1"], []),
        ("GPU-", ["GPU 0", "GPU 1"], []),
        ("7", ["GPU 0", "GPU 1"], []),
        ("MIG-dddd", ["GPU 0", "GPU 1"], []),
    ],
)
def test_only_gpus_that_trainers_see_count(library, visible, seen, others):
    totals, *_, found = look(library, "ecc", CUDA_VISIBLE_DEVICES=visible)
    assert (sorted(totals), found) == (seen, others)


def test_lost_gpu_of_another_job_is_not_ours(library):
    _, gauges, *_ = look(library, "lost", CUDA_VISIBLE_DEVICES="0")
    assert gauges[health.GPU_LOST] == 0.0


def test_job_without_gpus_looks_at_none(library):
    assert look(library, "ecc", CUDA_VISIBLE_DEVICES="") is None


def test_numbers_of_unlike_gpus_mean_something_only_in_the_order_of_the_bus(library):
    assert sorted(look(library, "mixed", CUDA_VISIBLE_DEVICES="1")[0]) == ["GPU 0", "GPU 1"]
    ordered = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert sorted(look(library, "mixed", **ordered)[0]) == ["GPU 1"]
