"""Wrong command lines, files, folders, names and numbers: each ends in a sentence that says what now, and with code 2.

In this process, where nothing has to be started for it.
"""

from __future__ import annotations

import json
import os
import socket
import sys

import pytest
from command import deadpool

from deadpool.cli.main import main

WRONG: list[tuple[str, str]] = [
    # --- the command line
    ("run", "Missing argument"),
    ("run --nodes abc {script}", "Invalid value for '--nodes': give a whole number. `deadpool run --help` says what"),
    ("run --hang-timeout-s soon {script}", "Invalid value for '--hang-timeout-s': give a number"),
    ("run --nodes 0 {script}", "--nodes=0 cannot be used: give a number of at least 1"),
    ("run --nodez 4 {script}", "there is no option --nodez"),
    ("run --nodes 2 --holders 2 {script}", "holders=2 cannot be used: give less than 2, the number of nodes"),
    ("run --protect nonsense {script}", "protect='nonsense' cannot be used"),
    ("run --hang-timeout-s -5 {script}", "--hang-timeout-s=-5.0 cannot be used"),
    ("run --durable-every abc --durable d {script}", "--durable-every='abc' cannot be used"),
    ("run --dashboard-at xyz {script}", "--dashboard-at='xyz' cannot be used: give HOST:PORT"),
    ("run --metrics-port 70000 {script}", "--metrics-port=70000 cannot be used"),
    ("run --on-inexact perhaps {script}", "--on-inexact='perhaps' cannot be used"),
    ("run --standby-coordinators 1 {script}", "--standby-coordinators=1 cannot be used"),
    ("run --log-format xml {script}", "--log-format='xml' cannot be used"),
    ("run --bulk-nice 40 {script}", "--bulk-nice=40 cannot be used"),
    ("run --fault at=never@rank=0 {script}", "at='never' is not a moment"),
    ("run --fault at=backward@rank=0 {script}", "at=backward needs a step"),
    ("run --fault node=n0 {script}", "names no moment"),
    (
        "run --fault at=backward@step=0@node=n99 {script}",
        "fault 'at=backward step=0 node=n99': node='n99' cannot be used: give one of n0",
    ),
    ("run --fault at=backward@step=0@rank=9 {script}", "rank=9 cannot be used"),
    ("run --on-event nonsense {script}", "--on-event='nonsense' cannot be used: give EVENT=COMMAND"),
    ("nosuchcommand", "No such command"),
    ("node kill {known}", "a fault needs one target: give either a node or a rank, as in --rank 0"),
    ("show logs {known}", "give either --rank or --trainer"),
    ("node replace {known}", "no node was chosen"),
    ("plan --nodes 0", "nodes=0 cannot be used"),
    ("demo --layout nosuch", "layout='nosuch' cannot be used: give one of fsdp2, ddp, plain"),
    ("demo --steps 0", "steps=0 cannot be used"),
    ("demo --victim n9", "victim='n9' cannot be used"),
    ("lab chaos --faults 0", "faults=0 cannot be used"),
    ("lab chaos --kinds nonsense", "nonsense"),
    ("agent --join nonsense {script}", "join='nonsense' cannot be used: give HOST:PORT"),
    ("agent --name n1 {script}", "need --join HOST:PORT as well"),
    ("coordinator --run-dir {known}", "Missing option '--nodes'"),
    ("kubernetes manifest --image i --nodes 0 {script}", "nodes=0 cannot be used: give a number of at least 1"),
    ("kubernetes manifest --image i --spares -1 {script}", "spares=-1 cannot be used"),
    # --- the script
    ("run absent.py", "script='absent.py' is not a file"),
    ("run /dev/stdin", "is no regular file"),
    ("run {empty}", "is empty: give the path"),
    ("run {folder}", "is a folder without a __main__.py"),
    ("run -m nosuchmodule", "nor installed. Correct the name, or start in the folder that has it"),
    ("run --no-python {python} -c x", "cannot be used: trainers are forked"),
    ("run --no-python bash x.sh", "cannot be protected"),
    ("run --module --no-python x", "cannot be used together"),
    # --- files and folders
    ("run --run-dir {file} {script}", "cannot be used: it is a file. Give a folder"),
    ("run --run-dir {file}/below {script}", "cannot be used: Not a directory"),
    ("run --run-dir /proc/nothing {script}", "cannot be used: No such file or directory"),
    (
        "run --config absent.toml {script}",
        "absent.toml cannot be read: No such file or directory. Give the path of a TOML",
    ),
    ("run --config {file} {script}", "cannot be read"),
    ("run --config {folder} {script}", "Is a directory"),
    ("run --topology absent.toml {script}", "topology file absent.toml cannot be read"),
    ("run --health-root {absent} {script}", "--health-root='{absent}' cannot be used: {absent} is no folder. Give the"),
    ("agent --join 127.0.0.1:1 --health-root {file} {script}", "cannot be used: {file} is no folder"),
    ("run --tls {folder} {script}", "--tls='{folder}' cannot be used: it has no cert.pem, no key.pem, no ca.pem. Give"),
    ("agent --join 127.0.0.1:1 --logs {file} {script}", "cannot be used: it is a file. Give a folder"),
    ("status {absent}", "is not there: give the run folder of a job"),
    ("status {known} {folder}", "Got unexpected extra argument"),
    ("status {known} --run-dir {folder}", "leave out --run-dir"),
    ("status --run-dir {absent}", "is not there: give the run folder of a job"),
    ("status --run-dir {file}", "is a file: give the run folder of a job"),
    ("status {file}", "is a file: give the run folder of a job"),
    ("status {broken}", "job.json, which says where the coordinator is, is damaged"),
    ("status {odd}", "though the job itself may run"),
    ("status {far}", "job.json, which says where the coordinator is, is damaged"),
    ("run --config {binary} {script}", "cannot be read"),
    ("show story {told} --cause fault-9", "cause='fault-9' is none of"),
    ("show story run-2", "run folder run-2 is not there"),
    ("status {known}", "has ended, or its machine cannot be reached. `deadpool show story"),
    ("status {open}", "is open to every user: chmod 600 it"),
    ("status", "no job was found in ./deadpool-runs"),
    ("show story {absent}", "is not there"),
    ("show story {folder}", "has no events.jsonl"),
    ("show story fault-x", "run folder fault-x is not there"),
    ("node kill {known} --rank 0", "has ended, or its machine cannot be reached"),
    ("node drain {known}", "no node was chosen: name the one that is to leave, as in --node n3"),
    ("node drain {absent} --node n1", "is not there"),
    ("node drain n1 --node n2", "run folder n1 is not there"),
    ("node drain {file} --node n1", "is a file: give the run folder of a job"),
    ("node drain n1", "no job was found in ./deadpool-runs"),
    ("node drain n1 --run-dir {absent}", "is not there"),
    ("node drain {known} --run-dir {known} --node n1", "leave out --run-dir"),
    ("node drain {known} n1", "Got unexpected extra argument"),
    ("node drain {known} --node n1", "has ended, or its machine cannot be reached"),
    ("job audit {known}", "has ended, or its machine cannot be reached"),
    ("job protect {known}", "no scheme was chosen"),
    ("job protect copies=2", "no job was found in ./deadpool-runs"),
    ("job protect nonsense", "no scheme was chosen: give --scheme with copies=N, rs(K,M) or auto"),
    (
        "job protect {known} --scheme nonsense",
        "--scheme='nonsense' cannot be used, 'nonsense' is neither copies=N nor rs(K,M)",
    ),
    ("job protect {known} --scheme rs(1,2)", "give copies=N, rs(K,M) or auto, as in --scheme copies=2"),
    ("job protect {known} --scheme copies=2", "has ended, or its machine cannot be reached"),
    ("show dashboard {absent}", "is not there"),
    ("show report {absent}", "is not there"),
    ("show report {file}", "is a file"),
    ("show trace {folder}", "has no events"),
    ("show journal {absent}", "is not there"),
    ("show journal {file}", "is a file"),
    ("show journal --folder {absent}", "does not exist: give folders of journals"),
    ("show journal {known} --folder {folder}", "both RUN"),
    ("durable now {absent}", "is not there"),
    ("pool serve --pool {file}", "--pool='{file}' cannot be used: it is a file. Give a folder"),
    (
        "ssh --hosts {absent} {script}",
        "cannot be read: No such file or directory. Give a file with one machine per line",
    ),
    ("run --config {toml} {script}", "nodez is not a setting. The nearest one is nodes;"),
    ("run --protect copies=3 {script}", "copies=N or rs(K,M) with N or M less than nodes=1"),
    ("run --nodes 2 --protect copies=3 {script}", "with N or M less than --nodes=2"),
    ("pool status --pool {absent}", "no pool in"),
    # --- the network
    (
        "run --interface nosuch0 {script}",
        "--interface='nosuch0' is not one with an IPv4 address on this machine: give one of",
    ),
    # --- ports that there cannot be
    ("show dashboard {known} --port 99999", "port=99999 at 127.0.0.1 cannot be used"),
    ("show dashboard {known} --port -1", "give another one of at most 65535"),
    ("agent --join 127.0.0.1:99999 {script}", "give HOST:PORT of the coordinator, with a port from 1 to 65535"),
    ("agent --join 127.0.0.1:-1 {script}", "give HOST:PORT of the coordinator"),
    ("agent --join 127.0.0.1:１２ {script}", "give HOST:PORT of the coordinator"),
    ("pool join --at 127.0.0.1:99999", "give HOST:PORT of the pool"),
    ("run --dashboard --dashboard-at 127.0.0.1:99999 {script}", "give HOST:PORT with a port of at most 65535"),
    ("coordinator --nodes 1 --run-dir {new} --port 99999", "port=99999 cannot be used"),
    ("coordinator --nodes 3 --run-dir {new} --coordinators a:1,b:99999", "'b:99999' cannot be used"),
    ("doctor --rendezvous 127.0.0.1:99999 --nodes 2", "give HOST:PORT of one of the nodes"),
    ("show dashboard {known} --host nosuch.invalid", "): give an address of this machine as --host"),
    (
        "pool serve --pool {new} --port -1",
        "--port=-1 cannot be used: give another one of at most 65535, or 0 for any free one",
    ),
    ("run --metrics-port -1 {script}", "--metrics-port=-1 cannot be used: give a port"),
    # --- nothing, where a variable of the shell is not set
    ("run --run-dir {nothing} {script}", "--run-dir is empty, perhaps from a variable of the shell that is not set"),
    ("run --run-dir= {script}", "--run-dir is empty"),
    ("coordinator --nodes 1 --run-dir {nothing}", "--run-dir is empty"),
    ("agent --join 127.0.0.1:1 --logs {nothing} {script}", "--logs is empty"),
    ("slurm submit --run-dir {nothing} {script}", "--run-dir is empty"),
    ("pool serve --pool {nothing}", "--pool is empty"),
    ("status {nothing}", "RUN is empty, perhaps from a variable of the shell that is not set: give a folder"),
    ("node drain {nothing} --node n1", "RUN is empty"),
    ("show journal {nothing}", "RUN is empty"),
    ("status --run-dir {nothing}", "--run-dir is empty"),
    ("run {nothing}", "the script is empty, perhaps from a variable of the shell that is not set: give its path"),
    ("ssh --hosts {file} {nothing}", "the script is empty"),
    ("run -m {nothing}", "-m names no module"),
    ("run --tls {nothing} {script}", "--tls='' cannot be used: give off, ephemeral, or a folder"),
    ("run --preload {nothing} {script}", "--preload='' cannot be used: give the name of a package"),
    ("node drain {known} --node {nothing}", "--node='' cannot be used: give the name of a node"),
    ("node kill {known} --node {nothing}", "--node='' cannot be used: give the name of a node"),
    ("durable list {nothing}", "PATH is empty: give what the job has as --durable"),
    ("pool add-job {nothing} {script}", "name='' cannot be used: give a name that can be that of a folder"),
    # --- numbers that there cannot be
    ("run --node-timeout-s inf {script}", "--node-timeout-s=inf cannot be used: give a finite number"),
    ("run --prepare-timeout-s nan {script}", "--prepare-timeout-s=nan cannot be used: give a finite number"),
    ("run --spare-wait-s 1 {script}", "give at least 5 s, one node timeout: a node that comes back may be the spare"),
    ("run --bulk-cpus 3-1 {script}", "--bulk-cpus='3-1' cannot be used: give numbers and ranges, as in 0-3,8"),
    ("run --bulk-cpus 0-1-2 {script}", "--bulk-cpus='0-1-2' cannot be used"),
    ("run --bulk-cpus 99999 {script}", "--bulk-cpus='99999' cannot be used: give some of this node's CPUs, "),
    ("node kill {known} --rank -1", "--rank=-1 cannot be used: give 0 or more"),
    ("show logs {told} --rank 0 --lines 0", "--lines=0 cannot be used: give at least 1"),
    ("durable now {known} --wait-s -1", "--wait-s=-1 cannot be used: give at least 0 s"),
    ("job audit {known} --wait-s nan", "--wait-s=nan cannot be used: give at least 0 s"),
    ("lab sim --seeds 0", "--seeds=0 cannot be used: give at least 1"),
    ("lab sim --jobs -1", "--jobs=-1 cannot be used: give at least 0"),
    ("lab sim --nodes 1", "--nodes=1 cannot be used: give at least 4"),
    ("lab chaos --minutes -1", "--minutes=-1 cannot be used: give more than 0"),
    ("lab chaos --strangers -1", "--strangers=-1 cannot be used: give at least 0"),
    ("plan --durable-every-min nan", "--durable-every-min=nan cannot be used: give"),
    ("doctor --timeout-s 0", "--timeout-s=0 cannot be used: give more than 0"),
    ("doctor --gpus -1", "--gpus=-1 cannot be used: give at least 0"),
    (
        "doctor --rendezvous 127.0.0.1:1",
        "nodes=0 cannot be used with --rendezvous: say how many nodes there are",
    ),
    ("ssh --hosts {file} --fan-out 0 {script}", "--fan-out=0 cannot be used: give at least 1"),
    ("ssh --hosts {file} --lease-s 0 {script}", "--lease-s=0 cannot be used: give at least 2 s"),
    ("pool join --at 127.0.0.1:1 --memory-gb -1", "--memory-gb=-1 cannot be used: give at least 0"),
    ("node drain --node n1 --wait-s -1", "--wait-s=-1 cannot be used: give at least 0 s"),
    ("slurm script --time {nothing} {script}", "--time='' cannot be used: give what sbatch takes as --time, or leave"),
    ("slurm submit --warn-s -1 {script}", "--warn-s=-1 cannot be used: give at least 0"),
    ("run --nodes 1000000 {script}", "--nodes=1000000 cannot be used: `deadpool run` starts all nodes on this machine"),
    ("run --spares 1000000 {script}", "Give at most 1024, or start the job by slurm, kubernetes or ssh"),
    # --- what contradicts or goes with something else
    (
        "run --nodes 4 --holders 1 --protect copies=2 {script}",
        "--holders=1 and --protect='copies=2' cannot be used together: give one of them",
    ),
    ("run --nodes 4 --holders 2 --protect rs(2,1) {script}", "cannot be used together: give one of them"),
    ("coordinator --nodes 4 --run-dir {new} --holders 3 --protect copies=2", "cannot be used together: give one of"),
    ("node kill {known} --rank 0 --node n1", "a fault needs one target: give either a node or a rank"),
    ("node kill {known} --rank 0 --step 3", "--step=3 goes with a moment: give --at, or at= in --fault, one of"),
    ("node kill {known} --rank 0 --at backward", "--at=backward needs a step: give --step N"),
    ("plan --goodput-at-least 99 --spares 1", "--goodput-at-least and --spares cannot be used together"),
    ("plan --log-days 3", "--log-days=3 cannot be used without a log: give --failure-log as well"),
    (
        "doctor --rendezvous 127.0.0.1:1 --agents",
        "--join, --rendezvous and --agents exclude each other: give one of them",
    ),
    ("agent --join 127.0.0.1:1 --host 127.0.0.1 --interface lo {script}", "cannot be used together: give one of them"),
    ("pool add-job train {script} --run-dir {known}", "before its name (what follows is the script's)"),
    ("show trace {told} --cause fault-9", "--cause='fault-9' is none of {told}: give one of fault-1"),
    ("kubernetes manifest --image i --nproc-per-node 0 {script}", "--nproc-per-node=0 cannot be used"),
    # --- files that come out of a command or go into it
    ("demo --out {folder}", "--out='{folder}' cannot be used: it is a folder. Give the path of a file"),
    ("lab chaos --out {file}/below", "cannot be used: {file} is a file. Give the path of a file that can be written"),
    ("lab sim --seeds 1 --out {folder}", "--out='{folder}' cannot be used: it is a folder"),
    ("plan --svg {folder}", "--svg='{folder}' cannot be used: it is a folder"),
    ("show picture {told} --out {folder}", "--out='{folder}' cannot be used: it is a folder"),
    ("show report {told} --out {file}/below", "cannot be used: {file} is a file"),
    ("show logs {told} --trainer n1.0 --logs {absent}", "--logs='{absent}' is not a folder: give that of an agent"),
    ("run --webhook failed=nonsense {script}", "the target of a --webhook is no URL that can be posted to"),
    ("pool join --at 127.0.0.1:1 --folder {file}", "--folder='{file}' cannot be used: it is a file"),
    ("kubernetes manifest --image i --values {binary} {script}", "--values='{binary}' cannot be read"),
    (
        "kubernetes manifest --image i --values {absent} {script}",
        "No such file or directory. Give a file with a YAML mapping",
    ),
    ("kubernetes manifest --image i --script {absent}", "cannot be read: No such file or directory. Give the path"),
    ("kubernetes manifest --image i --script {empty}", "--script='{empty}' is empty: give the path"),
    (
        "plan --protect nonsense",
        "--protect='nonsense' cannot be used: give copies=1 or more, or rs(K,M) such as rs(8,2)",
    ),
]


@pytest.mark.parametrize(("line", "message"), WRONG, ids=[line for line, _ in WRONG])
def test_is_refused_in_words(refused, names, line, message):
    assert message.format(**names) in refused(line)


def test_port_that_is_taken(refused):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(f"pool serve --pool {{new}} --host 127.0.0.1 --port {port}")
    assert f"port={port} of 127.0.0.1 cannot be used, it is taken" in said


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "coordinator --nodes 3 --run-dir {new} --coordinators 127.0.0.1:7",
            "127.0.0.1:0 is not among them. Give this",
        ),
        ("coordinator --nodes 1 --run-dir {new} --host 192.0.2.77", "host='192.0.2.77', port=0 cannot be used"),
        pytest.param("durable salvage {absent}", "there are no salvaged copies", marks=pytest.mark.thorough),
    ],
)
def test_process_of_its_own_is_refused_in_words(names, line, message):
    done = deadpool(*line.format(**names).split())
    assert (done.returncode, message in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr


NO_EVENTS = [
    os.urandom(3000),
    b"[1, 2]",
    b'"text"',
    b'{"what": "fault"}',
    b'{"no": "event"}',
    b'{"what": "x", "t": "a"}',
]


@pytest.mark.parametrize("command", ["story", "report", "trace", "picture", "logs --rank 0"])
@pytest.mark.parametrize("log", [b"\n".join(NO_EVENTS), b""], ids=["damaged", "empty"])
def test_log_that_is_no_log_is_refused(refused, names, command, log):
    (names["folder"] / "events.jsonl").write_bytes(log)
    assert "events.jsonl holds no event: it is empty or damaged" in refused(f"show {command} {{folder}}")


@pytest.mark.parametrize("command", ["story", "report", "picture"])
def test_log_that_is_a_folder_is_refused(refused, names, command):
    (names["folder"] / "events.jsonl").mkdir()
    assert "cannot be read: Is a directory. Give the run folder of a job" in refused(f"show {command} {{folder}}")


def test_lines_that_are_no_events_are_passed_over(names, ended, capfd):
    whole = b'{"what": "began", "t": 1.0}'
    (names["folder"] / "events.jsonl").write_bytes(b"\n".join([*NO_EVENTS, whole]))
    assert ended(f"show story {names['folder']}") == 0
    assert "no completed recovery" in capfd.readouterr().out


NOTHING_FOUND = [
    ("show journal {told}", "there are no values in"),
    ("show journal {told} --rank 7", "there are no values of rank 7 in"),
    ("show journal --folder {folder}", "there are no values in"),
    ("durable list {absent}", "there is no complete checkpoint in"),
    ("durable list {absent} --json", "there is no complete checkpoint in"),
    ("durable verify {folder}", "there is no complete checkpoint in"),
    ("show logs {told} --trainer x", "no log in {told}/logs is of a trainer with this name"),
    ("show logs {told} --trainer n1.0", "It ran on node n1: look there"),
]


@pytest.mark.parametrize(("line", "message"), NOTHING_FOUND, ids=[line for line, _ in NOTHING_FOUND])
def test_nothing_found_is_no_success(names, ended, capfd, line, message):
    assert ended(line.format(**names)) == 1
    assert message.format(**names) in "".join(capfd.readouterr())


def test_error_of_the_machine_is_a_sentence_and_a_traceback_only_on_demand(refused, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "/somewhere")

    monkeypatch.setattr("deadpool.cli.job_client.find_run_dir", full)
    assert "deadpool: /somewhere: No space left on device" in refused("status")
    monkeypatch.setattr(sys, "argv", ["deadpool", "--debug", "status"])
    monkeypatch.setenv("DEADPOOL_DEBUG", "")
    with pytest.raises(OSError, match="No space left"):
        main()


def test_story_counts_what_comes_again_and_again(names, monkeypatch, capfd):
    milestones = [{"what": "fault", "reason": "gone", "ranks": [0], "node": "n0"}, {"what": "fenced"}]
    milestones += [{"what": "planned", "step": 7, "lost_steps": 0}, {"what": "prepared"}, {"what": "go"}]
    missed = [{"what": "capture_missed", "rank": 0, "step": step} for step in range(1000)]
    records = [{"t": 1.0 + t, "cause": "fault-1", **each} for t, each in enumerate([*milestones, *missed])]
    (names["folder"] / "events.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    monkeypatch.setattr(sys, "argv", ["deadpool", "show", "story", str(names["folder"])])
    with pytest.raises(SystemExit):
        main()
    said = capfd.readouterr().out
    assert "and 1000 times capture_missed" in said and len(said.splitlines()) < 30
