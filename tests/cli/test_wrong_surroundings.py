"""Wrong environment variables, permissions, versions and disks: each ends in a sentence that says what now, and code 2.

The other half of the table of wrong inputs is in test_wrong_inputs.py.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from command import COMMAND, check_sentences, deadpool
from permissions import no_overrides
from small_disk import small_disk
from waiting import LIMIT_S

VARIABLES = [
    ("DEADPOOL_NODES=abc", "run {script}", "DEADPOOL_NODES='abc' cannot be used: give a whole number"),
    ("DEADPOOL_NODES=0", "run {script}", "DEADPOOL_NODES=0 cannot be used: give a number of at least 1"),
    ("DEADPOOL_NODES=0", "run --nodes -1 {script}", "--nodes=-1 cannot be used"),  # the flag counts
    ("DEADPOOL_HANG_TIMEOUT_S=soon", "run {script}", "DEADPOOL_HANG_TIMEOUT_S='soon' cannot be used: give a number"),
    ("DEADPOOL_DASHBOARD=perhaps", "run {script}", "DEADPOOL_DASHBOARD='perhaps' cannot be used: give true or false"),
    ("DEADPOOL_DURABLE_EVERY=often", "run {script}", "DEADPOOL_DURABLE_EVERY='often' cannot be used: give a time"),
    ("DEADPOOL_METRICS_PORT=70000", "run {script}", "DEADPOOL_METRICS_PORT=70000 cannot be used: give a port"),
    ("DEADPOOL_DASHBOARD_AT=localhost", "run {script}", "DEADPOOL_DASHBOARD_AT='localhost' cannot be used"),
    ("DEADPOOL_TLS={folder}", "run {script}", "DEADPOOL_TLS='{folder}' cannot be used: it has no cert.pem"),
    ("DEADPOOL_INTERFACE=nosuch0", "run {script}", "DEADPOOL_INTERFACE='nosuch0' is not one with an IPv4 address"),
    ("DEADPOOL_SECRET=", "status {known}", "in DEADPOOL_SECRET is empty: copy it from the file `secret`"),
    ("DEADPOOL_SECRET=short", "status {known}", "in DEADPOOL_SECRET is too short: give at least 16 characters"),
    ("DEADPOOL_SECRET_FILE={absent}", "status {known}", "set DEADPOOL_SECRET_FILE to a file that this user can read"),
    (
        "DEADPOOL_WEBHOOK=failed=@{absent}",
        "run {script}",
        "cannot be read: No such file or directory. Give EVENT=@FILE",
    ),
    ("DEADPOOL_SECRET_FILE=", "status {known}", "DEADPOOL_SECRET_FILE is empty: set it to a file that holds"),
    ("DEADPOOL_SECRET_FILE={open}/secret", "status {known}", "is open to every user: chmod 600 it"),
]

PERMISSIONS = [
    ("{known}/secret", "status {known}", "secret: Permission denied): set DEADPOOL_SECRET_FILE to a file"),
    ("{told}/events.jsonl", "show story {told}", "cannot be read: Permission denied. Give the run folder of a job"),
    ("{toml}", "run --config {toml} {script}", "cannot be read: Permission denied. Give the path of a TOML file"),
    ("{file}", "ssh --hosts {file} {script}", "cannot be read: Permission denied. Give a file with one machine"),
    ("{folder}", "run --run-dir {folder}/run {script}", "Permission denied. Give a folder that this user can write to"),
    ("{folder}", "agent --join 127.0.0.1:1 --logs {folder}/logs {script}", "cannot be used: Permission denied"),
    ("{folder}", "pool serve --pool {folder}/pool", "--pool='{folder}/pool' cannot be used: Permission denied"),
    ("{folder}", "show report {told} --out {folder}/page.html", "Permission denied. Give another path, or the right"),
]

VERSIONS = [
    ("kubernetes manifest --image i --server-version new {script}", "--server-version='new' cannot be used: give"),
    ("kubernetes manifest --image i --server-version 1 {script}", "--server-version='1' cannot be used: give"),
    ("run --no-python {other}/python3 x.py", "and DeadPool runs in"),
    ("durable salvage {other}", "is no salvaged copy, or one of another version of DeadPool"),
]


@pytest.mark.parametrize(("variable", "line", "message"), VARIABLES, ids=[each for each, _, _ in VARIABLES])
def test_variable_is_refused(refused, names, monkeypatch, variable, line, message):
    name, _, value = variable.partition("=")
    monkeypatch.setenv(name, value.format(**names))
    assert message.format(**names) in refused(line)


@pytest.mark.parametrize(("path", "line", "message"), PERMISSIONS, ids=[each for _, each, _ in PERMISSIONS])
def test_path_without_permission_is_refused(refused, names, path, line, message):
    closed = Path(path.format(**names))
    closed.chmod(0o500 if closed.is_dir() else 0)
    with no_overrides():
        said = refused(line)
    assert message.format(**names) in said


@pytest.mark.parametrize(("line", "message"), VERSIONS, ids=[line for line, _ in VERSIONS])
def test_version_is_refused(refused, names, tmp_path, line, message):
    other = names["other"] = tmp_path / "other"
    other.mkdir()
    (other / "python3").touch(mode=0o755)
    (other / "rank-0-step-1.kept").write_bytes(b"DPKEPT0\n" + bytes(1000))
    assert message in refused(line)


# --- disks -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        yield disk


def refused_words(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    check_sentences(done.stderr)
    return done.stderr


@pytest.mark.parametrize("inside", [True, False], ids=["there", "to be made"])
def test_run_folder_that_is_full_at_the_start(disk, names, inside):
    """A folder of no bytes can be made on it."""
    place = disk.path if inside else disk.path / "run"
    disk.fill()
    said = refused_words(deadpool("run", "--run-dir", place, names["script"]))
    assert "cannot be used: No space left on device. Give a folder that this user can write to, with some room" in said


@pytest.mark.parametrize("inside", [True, False], ids=["there", "to be made"])
def test_run_folder_that_is_read_only_at_the_start(disk, names, inside):
    place = disk.path if inside else disk.path / "run"
    disk.make_read_only()
    try:
        said = refused_words(deadpool("run", "--run-dir", place, names["script"]))
    finally:
        disk.make_writable()
    assert f"--run-dir='{place}' cannot be used: Read-only file system. Give a folder that this user can write" in said


@pytest.mark.parametrize("line", ["show story {told}", "run --help", "--version"])
def test_output_that_takes_nothing(names, line):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, *line.format(**names).split()], stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S
        )
    assert "what this command prints cannot be written: No space left on device. Make room" in refused_words(done)
    assert len(done.stderr.splitlines()) == 1


def test_reader_that_has_gone_is_told_nothing(names):
    piped = subprocess.Popen([*COMMAND, "--version"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert piped.stdout is not None and piped.stderr is not None
    piped.stdout.close()
    with piped.stderr:
        assert (piped.stderr.read(), piped.wait(LIMIT_S)) == ("", 1)


# --- what is not there -----------------------------------------------------------------------------------------------


def test_resume_where_there_is_nothing_to_resume_from(names):
    words = ["run", "--durable", names["absent"], "--resume", "must", "--run-dir", names["new"], names["script"]]
    done = deadpool(*words)
    assert "give another --durable, or --resume auto" in done.stdout + done.stderr
    assert "the coordinator did not start: its last line above says why" in refused_words(done)
    assert "console.log" not in done.stderr


def test_store_that_has_no_credentials(refused, monkeypatch):
    def refuse(_: object) -> None:
        raise OSError("NoCredentialsError: Unable to locate credentials")

    monkeypatch.setattr("deadpool.durable.manifest.complete_ones", refuse)
    for command in ("list", "verify"):
        said = refused(f"durable {command} {{folder}}")
        assert "cannot be read: NoCredentialsError: Unable to locate credentials. Give what the job has as" in said


def test_slurm_that_is_not_there(refused, names, monkeypatch):
    monkeypatch.setenv("PATH", str(names["folder"]))
    said = refused("slurm submit --no-preflight {script}")
    assert "the job was not submitted: sbatch cannot be run here: No such file or directory. Start this where" in said


def test_way_to_a_coordinator_that_there_cannot_be(refused):
    assert "Correct that address, or give this machine's own with --host or --interface" in refused(
        "agent --join ::1:29400 {script}"
    )
