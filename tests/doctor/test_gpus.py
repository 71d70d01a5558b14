"""GPU health through the real nvidia-ml-py, with a library in place of the driver's that has sick GPUs: there is none
here. `test_on_this_gpu` asks a real one where there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from examined_machine import Examined, examine, mounted, needs, needs_root

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed: pip install 'torch-deadpool[doctor]'")
SOURCE = Path(__file__).with_name("fake_nvml.c")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with libnvidia-ml.so.1 in it."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler for the stand-in of NVML")
    folder = tmp_path_factory.mktemp("nvml")
    command = ["cc", "-shared", "-fPIC", "-w", "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)]
    subprocess.run(command, check=True, timeout=300)
    return folder


def with_gpus(library: Path, defect: str, *words: object, before: tuple[object, ...] | list[str] = ()) -> Examined:
    return examine(*words, before=before, more={"LD_LIBRARY_PATH": str(library), "FAKE_NVML": defect})


@pytest.mark.parametrize("state", ["sound", "idle", "power-capped", "no-ecc"])
def test_nothing_is_found_at_sound_gpus(library, state):
    """Idle ones, those at their power limit and those without ECC are sound as well."""
    sound = with_gpus(library, state, "--gpus", 2)
    assert sound.code == 0 and sound.of() == []
    assert (sound.facts["gpus"], sound.facts["driver"]) == (2, "580.95.05")


@pytest.mark.parametrize(
    ("defect", "words"),
    [
        ("ecc", "GPU 1 has had 3 memory errors that ECC could not correct"),
        ("pages", "GPU 1 has bad memory that is taken out of use only when it is reset"),
        ("row-pending", "GPU 1 has bad memory that is taken out of use only when it is reset"),
        ("row-failed", "GPU 1 could not replace a bad row"),
        ("lost", "GPU 1 does not answer"),
        ("mismatch", "NVML cannot be used"),
    ],
)
def test_sick_gpu(library, defect, words):
    found = with_gpus(library, defect).only
    assert found["check"] == "gpu" and words in found["what"]


def test_hot_gpu_is_told_with_its_reasons(library):
    told = [each["what"] for each in with_gpus(library, "hot").of()]
    assert told == ["GPU 1 is slowed down by its hardware", "GPU 1 is slowed down because it is too hot"]


def test_gpu_that_is_missing(library):
    assert "1 GPUs are visible, and 2 are needed" in with_gpus(library, "one", "--gpus", 2).only["what"]
    assert with_gpus(library, "one").code == 0


def test_persistence_mode_is_worth_a_note(library):
    noted = with_gpus(library, "no-persistence")
    assert noted.code == 0 and [each for each in noted.of("note") if "persistence" in each["what"]]


def test_driver_that_hangs_is_given_up(library):
    found = with_gpus(library, "hang", "--timeout-s", 10).only
    assert found["check"] == "gpu" and "did not end within 10 s" in found["what"]


@needs_root
@needs("unshare")
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("3,100,{now},-;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", 1),
        ("3,100,{now},-;NVRM: Xid (PCI:0000:01:00): 31, pid=7, name=python, Ch 00000010, MMU Fault", 0),
        ("6,100,{now},-;eth0: Link is Up", 0),
    ],
    ids=["fallen off the bus", "a program's fault", "nothing of the driver"],
)
def test_error_in_the_kernels_log(library, tmp_path, line, code):
    """A file in place of the kernel's log, which a test cannot write to without lying to everyone else."""
    log = tmp_path / "kmsg"
    log.write_text(line.format(now=int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)) + "\n")
    found = with_gpus(library, "sound", before=mounted(f"mount --bind {log} /dev/kmsg"))
    assert found.code == code
    if code:
        assert "Xid 79 of PCI:0000:01:00: that it has fallen off the bus" in found.only["what"]


def test_without_any_gpu_and_without_the_package(tmp_path):
    """A node without GPUs needs nothing; where some are needed, none is a finding, and the package is missed."""
    (tmp_path / "pynvml.py").write_text("raise ImportError('not installed')")
    more = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    if list(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has a GPU")
    assert examine(more=more).code == 0 and examine().code == 0
    needed = examine("--gpus", 1, more=more)
    assert needed.code == 1 and needed.checks("could not look") == ["gpu"]
    assert "pip install 'torch-deadpool[doctor]'" in needed.of("could not look")[0]["do"]
    assert examine("--gpus", 1).checks() == ["gpu", "gpu"]


@needs_root
@needs("unshare")
def test_gpu_without_the_package_could_not_be_looked_at(tmp_path):
    (tmp_path / "pynvml.py").write_text("raise ImportError('not installed')")
    more = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    devices = f"mkdir {tmp_path}/dev; cp -a /dev/null /dev/urandom {tmp_path}/dev; touch {tmp_path}/dev/nvidia0"
    hidden = mounted(
        f"{devices}; mkdir {tmp_path}/dev/shm; mount --bind {tmp_path}/dev /dev; mount -t tmpfs t /dev/shm"
    )
    looked = examine(before=hidden, more=more)
    assert looked.code == 2 and looked.checks("could not look") == ["gpu"]


@pytest.mark.gpu
def test_on_this_gpu():
    told = examine("--gpus", 1)
    assert told.facts["gpus"] >= 1 and told.facts["driver"] and told.facts["gpu_models"]
    assert not told.of("could not look")
