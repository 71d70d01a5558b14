"""Each defect of one node, planted for real, is found and told alone; a sound node has none."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from examined_machine import examine, mounted, needs, needs_root, ordinary
from waiting import LIMIT_S, wait_until

import deadpool
from deadpool.host.rdma import nixl_build


@pytest.fixture(autouse=True)
def no_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_END_TIME", "SLURM_JOB_ID", "DEADPOOL_SECRET", "DEADPOOL_SECRET_FILE", "DEADPOOL_TLS"):
        monkeypatch.delenv(name, raising=False)


# --- sound -----------------------------------------------------------------------------------------------------------


def test_nothing_is_found_on_a_sound_node(tmp_path):
    sound = examine("--arena", "1MB", "--run-dir", tmp_path, more={"SLURM_JOB_END_TIME": str(int(time.time()) + 86400)})
    assert (sound.code, sound.of(), sound.of("could not look")) == (0, [], [])
    assert sound.facts["deadpool"] == deadpool.__version__
    assert sound.facts["torch"] and sound.facts["python"]
    assert 86000 < sound.facts["time_left_s"] <= 86400
    assert list(tmp_path.iterdir()) == [], "it leaves nothing in the run folder"


def test_table_tells_it_in_words(tmp_path):
    command = [sys.executable, "-m", "deadpool.cli.main", "doctor", "--arena", "900TB"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, "COLUMNS": "200"}
    )
    assert done.returncode == 1
    assert "arenas need" in done.stdout and "fewer --slots" in done.stdout
    assert "correct what was found" in done.stdout


def test_torch_is_not_imported_unless_asked():
    lines = "import sys; sys.modules['torch'] = None; sys.argv = ['deadpool', 'doctor', '--json']"
    command = [sys.executable, "-c", f"{lines}; from deadpool.cli.main import main; main()"]
    assert subprocess.run(command, capture_output=True, timeout=LIMIT_S).returncode == 0


@pytest.mark.parametrize(
    "words", [("--arena", "much"), ("--rendezvous", "somewhere", "--nodes", "2"), ("--rendezvous", "127.0.0.1:9")]
)
def test_wrong_word_is_no_finding(words):
    command = [sys.executable, "-m", "deadpool.cli.main", "doctor", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 2 and "deadpool: " in done.stderr


def test_it_takes_little_more_than_any_command(tmp_path):
    """Of processor time, with all its children: what else runs on this machine does not count, and how fast it is
    counts for both."""
    shown = [sys.executable, "-m", "deadpool.cli.main", "doctor", "--help"]
    of_help = min(cpu_s(lambda: subprocess.run(shown, check=True, stdout=subprocess.DEVNULL)) for _ in range(3))
    own = min(cpu_s(lambda: examine("--run-dir", tmp_path, "--arena", "1MB")) for _ in range(3))
    print(f"the doctor took {own:.2f} s of processor time, its --help {of_help:.2f} s")
    assert own < 3 * of_help


def cpu_s(run: Callable[[], object]) -> float:
    """Of the processes that have begun and ended meanwhile."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# --- memory ----------------------------------------------------------------------------------------------------------


def test_more_memory_than_there_is():
    found = examine("--arena", "900TB").only
    assert found["check"] == "memory" and "the machine's memory" in found["what"]


@pytest.fixture
def small_cgroup():
    """A real cgroup with a limit of 256 MiB, below this process's own."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    paths = {name: path for _, names, path in (line.split(":", 2) for line in lines) for name in names.split(",")}
    version_1 = Path("/sys/fs/cgroup/memory") / paths.get("memory", "").lstrip("/")
    version_2 = Path("/sys/fs/cgroup") / paths.get("", "/").lstrip("/")
    parent, limit = (version_1, "memory.limit_in_bytes") if "memory" in paths else (version_2, "memory.max")
    folder = parent / f"deadpool-doctor-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(256 << 20))
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"no cgroup can be made in {parent}: {error}")
    yield folder
    wait_until(lambda: not (folder / "cgroup.procs").read_text(), "the end of its processes")
    folder.rmdir()


def test_cgroup_with_less_memory_than_arenas_need(small_cgroup):
    inside = ["sh", "-c", f'echo $$ > {small_cgroup}/cgroup.procs && exec "$@"', "sh"]
    found = examine("--arena", "512MB", before=inside).only
    assert found["check"] == "memory" and "256" not in found["what"].split("left by")[0]
    assert f"the limit of the cgroup {small_cgroup} (0.25 GiB)" in found["what"]
    assert examine("--arena", "64MB", before=inside).code == 0


@needs_root
@needs("unshare")
def test_memory_that_is_set_aside_as_huge_pages(tmp_path):
    """The kernel's own figures with other numbers: reserving huge pages for real would take them from everyone here."""
    lines = [line for line in Path("/proc/meminfo").read_text().splitlines() if not line.startswith("Huge")]
    lines = [line if not line.startswith("MemAvailable") else "MemAvailable:     1048576 kB" for line in lines]
    fake = tmp_path / "meminfo"
    fake.write_text("\n".join([*lines, "HugePages_Total: 2048", "HugePages_Free:  2000", "Hugepagesize: 2048 kB", ""]))
    found = examine("--arena", "3GiB", before=mounted(f"mount --bind {fake} /proc/meminfo")).only
    assert found["check"] == "memory" and "3.91 GiB that are set aside as huge pages" in found["do"]


@needs_root
@needs("unshare")
def test_small_shared_memory():
    found = examine(before=mounted("mount -t tmpfs -o size=64m tmpfs /dev/shm")).only
    assert found["check"] == "shared memory" and "64 MiB free" in found["what"]
    assert examine(before=mounted("mount -t tmpfs -o size=256m tmpfs /dev/shm")).code == 0


@needs_root
@needs("setpriv")
def test_memlock_that_keeps_rdma_out():
    """There is no RDMA device here, so a folder stands for what its driver would show; the limit is a real one."""
    device = "mount -t tmpfs tmpfs /sys/class\nmkdir -p /sys/class/infiniband/mlx5_0"
    limited = [*mounted(device), "prlimit", "--memlock=65536:65536", *ordinary()]
    found = examine(before=limited).only
    assert found["check"] == "memlock" and "memlock is 0.06 MiB" in found["what"] and "mlx5_0" in found["what"]
    examined = examine(before=[*mounted(device), "prlimit", "--memlock=65536:65536"])
    assert examined.facts["rdma_devices"] == ["mlx5_0"] and examined.facts["nixl"] == nixl_build()
    assert ("rdma" in examined.checks("note")) == (nixl_build() is None)
    raised = ["prlimit", "--memlock=unlimited:unlimited"]
    if subprocess.run([*raised, "true"], capture_output=True).returncode == 0:  # not in every container
        assert examine(before=[*mounted(device), *raised, *ordinary()]).code == 0
    assert examine(before=["prlimit", "--memlock=65536:65536", *ordinary()]).code == 0, "no RDMA: it does not matter"
    assert examine(before=[*mounted(device), "prlimit", "--memlock=65536:65536"]).code == 0, "nor for root"


def test_job_that_needs_rdma_on_a_node_without():
    if Path("/sys/class/infiniband").is_dir():
        pytest.skip("this machine has RDMA")
    assert "rdma" in examine("--rdma").checks()


@needs("prlimit")
@pytest.mark.parametrize(("limit", "check"), [("--nofile=512:512", "open files"), ("--cpu=600:600", "time limit")])
def test_limits_of_a_login_node(limit, check):
    assert examine(before=["prlimit", limit]).only["check"] == check


# --- folder and secret -----------------------------------------------------------------------------------------------


@needs_root
@needs("unshare")
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("mount -t tmpfs -o ro tmpfs {}", "Read-only file system"),
        ("mount -t tmpfs -o size=1m tmpfs {0}; dd if=/dev/zero of={0}/full bs=1M 2>/dev/null || true", "No space left"),
        ("mount -t tmpfs -o size=1g,nr_inodes=1 tmpfs {}", "No space left"),
        ("mount -t tmpfs -o size=50m tmpfs {}", "50 MiB free"),
    ],
    ids=["read-only", "full", "no inode", "nearly full"],
)
def test_folder_that_cannot_be_written_to(tmp_path, script, words):
    place = tmp_path / "run folder"
    place.mkdir()
    found = examine("--run-dir", place / "new" / "job", before=mounted(script.format(f"'{place}'"))).only
    assert found["check"] == "run folder" and words in found["what"]


@needs_root
@needs("setpriv")
def test_folder_of_somebody_else():
    """As an ordinary user: root may write anywhere."""
    before = mounted("mount -t tmpfs -o mode=700 tmpfs /mnt")
    found = examine("--run-dir", "/mnt", before=[*before, *ordinary()]).only
    assert found["check"] == "run folder" and "Permission denied" in found["what"]


def test_run_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").touch()
    assert examine("--run-dir", tmp_path / "file").only["check"] == "run folder"


@pytest.mark.parametrize(("mode", "text", "words"), [(0o644, "s" * 32, "every user"), (0o600, "short", "too short")])
def test_secret_that_cannot_be_used(tmp_path, mode, text, words):
    file = tmp_path / "secret"
    file.write_text(text)
    file.chmod(mode)
    found = examine(more={"DEADPOOL_SECRET_FILE": str(file)}).only
    assert found["check"] == "secret" and words in found["what"] + found["do"]
    file.write_text("s" * 32)
    file.chmod(0o600)
    assert examine(more={"DEADPOOL_SECRET_FILE": str(file)}).code == 0


# --- time and versions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("left_s", "words"), [(120, "the allocation ends in 1"), (-5, "time is over")])
def test_time_limit_that_is_nearly_over(left_s, words):
    end = str(int(time.time()) + left_s)
    found = examine(more={"SLURM_JOB_END_TIME": end}).only
    assert found["check"] == "time limit" and words in found["what"]
    assert examine("--end-time", end).only["check"] == "time limit"
    assert examine("--least-time-s", "60", more={"SLURM_JOB_END_TIME": end}).code == (0 if left_s > 0 else 1)


@pytest.mark.parametrize(("printed", "code"), [("4:05", 1), ("2-03:04:05", 0), ("UNLIMITED", 0), ("", 0)])
def test_time_limit_that_only_squeue_knows(tmp_path, printed, code):
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\necho '{printed}'\n")
    squeue.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert examine(more={"SLURM_JOB_ID": "7", "PATH": path}).code == code


def test_torch_that_is_missing_or_broken(tmp_path):
    """A Python that sees DeadPool and what it needs, and no torch; then one whose torch does not load."""
    seen = os.pathsep.join([str(Path(deadpool.__file__).parents[1]), *(path for path in sys.path if path)])
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.99: cannot open it')")
    broken = examine("--import-torch", "--timeout-s", "200", more={"PYTHONPATH": f"{tmp_path}{os.pathsep}{seen}"}).only
    assert broken["check"] == "versions" and "libcudart.so.99" in broken["what"]


# --- nothing hangs ---------------------------------------------------------------------------------------------------


@needs("unshare")
@needs_root
def test_folder_that_does_not_answer_is_given_up(tmp_path):
    """A file system whose server is gone: here one of fuse that nobody serves."""
    if not Path("/dev/fuse").exists():
        pytest.skip("there is no /dev/fuse")
    place = tmp_path / "hung"
    place.mkdir()
    options = "fd=5,rootmode=40000,user_id=0,group_id=0"
    before = mounted(f"exec 5<>/dev/fuse\nmount -i -t fuse -o {options} nobody '{place}'")
    hung = examine("--run-dir", place, "--timeout-s", "10", before=before)
    assert hung.only["check"] == "run folder" and "did not end within 10 s" in hung.only["what"]
