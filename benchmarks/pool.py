"""Two jobs with different scripts share three spare machines of one pool; nodes of both are killed again and again.

    python benchmarks/pool.py --faults 20 --json pool.json

All is real: `deadpool pool`, three `deadpool pool join`, two jobs of `deadpool run`'s launcher, SIGKILL to whole nodes,
all on loopback. In between the pool is killed and started again, a machine's own process is killed, a job is added
while it runs, and one job ends before the other. It fails unless every fault was healed, no machine was ever shared,
all losses are bit-identical to undisturbed runs, and what machines did while they were parked was gone within a second
each time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deadpool.config.job_config import JobConfig
from deadpool.control.coordinator.announcement import ask
from deadpool.control.launch.launcher import LocalJob
from deadpool.control.launch.run_dir import RunDir
from deadpool.demo.trial import Results, differences
from deadpool.errors import ConfigError, DeadPoolError
from deadpool.events.event import read_events
from deadpool.host.child_processes import end_with_parent
from deadpool_lab.strangers.references import run_torchrun

PACE = {"DEADPOOL_CHAOS_PACE_S": "0.15"}
MACHINES = ("s0", "s1", "s2")
WORK = {
    "s0": "trap 'exit 0' TERM; while :; do sleep 0.2; done",  # it ends when it is asked to
    "s1": "trap '' TERM; while :; do sleep 600; done",  # it has to be killed
    "s2": "setsid sleep 601 & sleep 602 & wait",  # it has children, one of them in another session
}
HERE = Path(__file__).parent


class Failed(Exception):
    pass


def until(ready: Callable[[], bool], what: str, timeout_s: float = 180.0) -> float:
    began = time.monotonic()
    while not ready():
        if time.monotonic() - began > timeout_s:
            raise Failed(f"{what}: not within {timeout_s:g} s")
        time.sleep(0.1)
    return time.monotonic() - began


@dataclass
class Job:
    name: str
    script: list[str]
    folder: Path
    local: LocalJob = field(init=False)
    kills: int = 0

    def __post_init__(self) -> None:
        config = JobConfig(nodes=2, overhead_budget=0.0, quarantine_after=0).checked()
        self.words = [*self.script, "--out", str(self.folder / "out"), "--stop", str(self.folder / "stop")]
        environment = {**PACE, "OMP_NUM_THREADS": "1"}
        run_dir = RunDir.create(self.folder / "run")
        self.local = LocalJob(config, run_dir, self.words, quiet=True, environment=environment)

    def events(self, what: str | None = None) -> list[dict[str, Any]]:
        return [e for e in read_events(self.local.run_dir.events) if what is None or e["what"] == what]

    def status(self) -> dict[str, Any]:
        return ask(self.local.run_dir, "status")

    def step(self) -> int:
        return Results.read(self.folder / "out").newest_step()

    def seats(self) -> list[str]:
        return list(self.events("planned")[-1]["seats"])

    def runs(self) -> bool:
        """It runs, and a version is complete that was computed since the last recovery."""
        gone = self.events("go")
        protected = [e for e in self.events("protected") if gone and e["t"] >= gone[-1]["t"]]
        faults = self.events("fault")
        return bool(protected) and (not faults or faults[-1]["t"] < gone[-1]["t"])

    def kill(self, node: str) -> float:
        self.kills += 1
        at = time.time()
        if node in self.local.nodes and self.local.nodes[node].poll() is None:
            return self.local.kill_node(node)
        groups = {each["node"]: each["process_group"] for each in self.status()["nodes"] if "process_group" in each}
        os.killpg(groups[node], signal.SIGKILL)
        return at


class Site:
    """The pool's processes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.pool = folder, folder / "pool"
        self.server: subprocess.Popen[bytes] | None = None
        self.hosts: dict[str, subprocess.Popen[bytes]] = {}

    def _spawn(self, *words: str) -> subprocess.Popen[bytes]:
        log = (self.folder / "pool.log").open("ab")
        with log:
            return subprocess.Popen(
                [sys.executable, "-m", "deadpool.cli.main", "pool", *words],
                env={**os.environ, **PACE, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                preexec_fn=end_with_parent(signal.SIGTERM),
            )

    def start_pool(self) -> None:
        self.server = self._spawn("serve", "--pool", str(self.pool))
        until(lambda: self._answers(), "the pool answers", 20)

    def _answers(self) -> bool:
        with contextlib.suppress(ConfigError):
            return bool(self.status())
        return False

    def start_host(self, name: str) -> None:
        folder = str(self.folder / name)
        self.hosts[name] = self._spawn(
            "join", "--pool", str(self.pool), "--name", name, "--folder", folder, "--while-parked", WORK[name]
        )

    def status(self) -> dict[str, Any]:
        return ask(RunDir(self.pool), "pool_status")

    def add(self, job: Job, priority: int) -> None:
        words = ["add-job", "--pool", str(self.pool), "--run-dir", str(job.local.run_dir.path)]
        words += [f"--priority={priority}", job.name, *job.words]
        if self._spawn(*words).wait(30):
            raise Failed(f"job {job.name} could not be added")

    def events(self, machine: str) -> list[dict[str, Any]]:
        return read_events(self.folder / machine / "events.jsonl")

    def leased(self, machine: str) -> str:
        last = [e for e in self.events(machine) if e["what"] in ("pool_leased", "pool_released")][-1:]
        return str(last[0]["job"]) if last and last[0]["what"] == "pool_leased" else ""

    def works(self, machine: str) -> bool:
        last = [e["what"] for e in self.events(machine) if e["what"].startswith("parked_work")][-1:]
        return last == ["parked_work_started"]

    def ready_for(self, machine: str, job: Job) -> bool:
        return (self.folder / machine / "jobs" / job.name / "ready").exists() and not self.leased(machine)

    def stop(self) -> None:
        for process in [*self.hosts.values(), *([self.server] if self.server else [])]:
            if process.poll() is None:
                process.terminate()
        for process in [*self.hosts.values(), *([self.server] if self.server else [])]:
            try:
                process.wait(8)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for agent in left_agents(self.folder):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(os.getpgid(agent), signal.SIGKILL)


def left_agents(folder: Path) -> list[int]:
    """Agents that machines of this site have started and that still run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"agent" in words and any(word.startswith(f"--lease={folder}".encode()) for word in words):
                found.append(int(process.name))
    return found


class Trial:
    def __init__(self, folder: Path, faults: int, seed: int, minutes: float) -> None:
        self.deadline = time.monotonic() + 60 * minutes
        self.faults, self.rng, self.site = faults, random.Random(seed), Site(folder)
        layout = ["--layout", "fsdp2", "--steps", "100000", "--layers", "2", "--width", "64", "--sequence", "32"]
        import deadpool_lab.chaos

        script = str(Path(deadpool_lab.chaos.__file__).with_name("script.py"))
        gpt = [script, *layout, "--vocabulary", "256", "--dropout", "0.1"]
        self.jobs = [
            Job("gpt", gpt, folder / "gpt"),
            Job("regression", [str(HERE / "pool_script.py")], folder / "regression"),
        ]
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    def run(self) -> None:
        first, second = self.jobs
        self.site.start_pool()
        for name in MACHINES:
            self.site.start_host(name)
        first.local.start()
        self.site.add(first, priority=1)
        second.local.start()
        until(first.runs, "the first job runs")
        self.await_spare(first)
        done = 0
        acts = self._acts()
        while self._has_more_to_do(done) and time.monotonic() < self.deadline:
            if done >= self.faults // 10 and second.name not in str(self.site.pool.joinpath("jobs.json").read_text()):
                until(second.runs, "the second job runs")
                self.site.add(second, priority=0)
                self.note("the second job was added while it runs")
                self.await_spare(second)
            while acts and acts[0][0] <= done:
                acts.pop(0)[1]()
            both = second.name in (self.site.pool / "jobs.json").read_text()
            done += self.inject(at_once=both and done % 5 == 4 and done + 1 < self.faults, both=both)
        self.finish()

    def _has_more_to_do(self, done: int) -> bool:
        """A machine that is needed before its work has begun again has nothing to stop, so some faults show less."""
        return done < self.faults or len(self.preemptions()) < self.faults

    def _acts(self) -> list[tuple[int, Callable[[], None]]]:
        """After how many faults each comes, or a little later: two faults may come at once."""
        quarter = max(1, self.faults // 4)
        return [(quarter, self.kill_pool), (2 * quarter, self.start_pool), (3 * quarter, self.kill_host)]

    def kill_pool(self) -> None:
        assert self.site.server is not None
        self.site.server.kill()
        self.site.server.wait()
        self.note("the pool was killed")

    def start_pool(self) -> None:
        self.site.start_pool()
        until(lambda: len(self.site.status()["hosts"]) == len(MACHINES), "machines are back", 20)
        self.note("the pool was started again, and knows " + ", ".join(j["name"] for j in self.site.status()["jobs"]))

    def kill_host(self) -> None:
        """Of a machine that a job has: the job does not notice."""
        machine = next((m for m in MACHINES if self.site.leased(m)), None)
        if machine is None:
            return
        job = next(job for job in self.jobs if job.name == self.site.leased(machine))
        faults, step = len(job.events("fault")), job.step()
        self.site.hosts[machine].kill()
        self.site.hosts[machine].wait()
        until(lambda: job.step() > step + 5, "steps without the machine's own process", 30)
        if len(job.events("fault")) != faults:
            raise Failed(f"job {job.name} noticed that the process of machine {machine} was killed")
        self.site.start_host(machine)
        time.sleep(1.0)
        if self.site.leased(machine) != job.name:
            raise Failed(f"machine {machine} lost its lease with its own process")
        self.note(f"the process of machine {machine} was killed and started again; job {job.name} did not notice")

    def await_spare(self, job: Job) -> None:
        """One that is ready for this job; all that are ready for it are at work."""

        def ready() -> bool:
            free = [m for m in MACHINES if self.site.ready_for(m, job)]
            return bool(free) and all(self.site.works(m) for m in free)

        until(ready, f"a machine is ready for job {job.name}", 180)

    def inject(self, *, at_once: bool, both: bool) -> int:
        jobs = self.jobs if at_once else [self.rng.choice(self.jobs) if both else self.jobs[0]]
        for job in jobs:
            until(job.runs, f"job {job.name} runs")
            self.await_spare(job)
        hit = [(job, self._victim(job)) for job in jobs]
        gone = [len(job.events("go")) for job in jobs]
        times = [job.kill(node) for job, node in hit]
        for (job, node), before, at in zip(hit, gone, times, strict=True):
            until(
                lambda job=job, before=before: len(job.events("go")) > before, f"job {job.name} goes on without {node}"
            )
            took = [e["t"] for e in job.events("go")][before] - at
            how = "killed, both jobs at once" if at_once else "killed"
            self.note(f"{job.name}: {node} {how}, {took:.1f} s to Go, {job.seats()}")
        return len(hit)

    def _victim(self, job: Job) -> str:
        """Two machines at most are in use, so that one is free: then a machine of the pool is killed."""
        used = sum(bool(self.site.leased(m)) for m in MACHINES)
        own = [node for node in job.seats() if node in MACHINES]
        return self.rng.choice(own if own and used >= 2 else job.seats())

    def finish(self) -> None:
        first, second = self.jobs
        for job in self.jobs:
            until(job.runs, f"job {job.name} runs")
        self.check_secrets()
        has = [m for m in MACHINES if self.site.leased(m) == first.name]
        self._end(first)
        until(
            lambda: not any(self.site.leased(m) == first.name for m in MACHINES),
            "the ended job gives machines back",
            20,
        )
        until(
            lambda: all(self.site.ready_for(m, second) for m in has if not self.site.leased(m)),
            "they serve the other",
            60,
        )
        self.note(f"job {first.name} ended and gave back {has}, which are ready for job {second.name}")
        self._end(second)

    def _end(self, job: Job) -> None:
        draft = job.folder / "draft"
        draft.write_text(str(job.step() + 20))
        draft.rename(job.folder / "stop")
        code = job.local.wait(60)
        if code:
            raise Failed(f"job {job.name} ended with code {code}")

    # --- what it has to show -----------------------------------------------------------------------------------------

    def check_secrets(self) -> None:
        """No agent's environment or command line leads to the secret of another job; a secret opens one job only."""
        secrets = {job.name: str(job.local.run_dir.secret_file) for job in self.jobs}
        for pid in left_agents(self.site.folder):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
                variables = Path(f"/proc/{pid}/environ").read_bytes().decode()
                own = next(job for job in secrets if f"--job={job}\0" in words)
                others = [path for job, path in secrets.items() if job != own]
                assert secrets[own] in variables
                if any(path in variables for path in others) or any(path in words for path in secrets.values()):
                    raise Failed(f"an agent of job {own} knows where another job's secret is")
        first, second = self.jobs
        stranger = RunDir.create(self.site.folder / "stranger")
        (stranger.path / "job.json").write_text((second.local.run_dir.path / "job.json").read_text())
        stranger.secret_file.write_text(first.local.run_dir.secret_file.read_text())
        stranger.secret_file.chmod(0o600)
        with contextlib.suppress(DeadPoolError):
            ask(stranger, "status")
            raise Failed("the secret of one job opens another")
        self.note("no agent knows another job's secret; one job's secret does not open the other")

    def shared(self) -> list[str]:
        """Machines that two jobs had at once, by what their own logs say of who sat where and when."""
        spans = [
            (machine, job.name, *span) for job in self.jobs for machine in MACHINES for span in _spans(job, machine)
        ]
        spans.sort(key=lambda span: span[2])
        return [
            f"{one[0]}: {one[1]} and {other[1]}"
            for i, one in enumerate(spans)
            for other in spans[i + 1 :]
            if one[0] == other[0] and one[1] != other[1] and other[2] < one[3]
        ]

    def preemptions(self) -> list[float]:
        """Seconds from the fence of the job that needs the machine to the end of the last process of its work."""
        found = []
        for machine in MACHINES:
            events = self.site.events(machine)
            for stop in (e for e in events if e["what"] == "parked_work_stopped"):
                leased = [e for e in events if e["what"] == "pool_leased" and e["t"] <= stop["t"]][-1]
                job = next(job for job in self.jobs if job.name == leased["job"])
                fence = [e["t"] for e in job.events("fence") if e["t"] <= leased["t"]][-1]
                found.append(stop["t"] - fence)
        return found


def _spans(job: Job, machine: str) -> Iterator[tuple[float, float]]:
    """When this machine had ranks of this job, from the plan that seated it to the fault that took it away."""
    began: float | None = None
    for event in job.events():
        sits = event["what"] == "planned" and machine in event["seats"]
        if sits and began is None:
            began = event["t"]
        lost = event["what"] == "fault" and event.get("node") == machine
        if began is not None and (lost or (event["what"] == "planned" and not sits) or event["what"] == "completed"):
            yield began, event["t"]
            began = None
    if began is not None:
        yield began, float("inf")


def undisturbed(job: Job, folder: Path) -> Results:
    """The same script under torchrun, without DeadPool."""
    folder.mkdir()
    script, *words = job.script
    words += ["--out", str(folder / "out"), "--stop", str(job.folder / "stop")]
    console = folder / "console.log"
    code = run_torchrun(Path(script), words, 2, console, timeout_s=120.0)
    assert code == 0, f"torchrun ended with {code}:\n{console.read_text()}"
    return Results.read(folder / "out")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=20, help="at least, and as many preemptions")
    parser.add_argument("--minutes", type=float, default=25.0, help="no further fault after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--preempted-within-s", type=float, default=1.0, help="it fails if a command took longer to end"
    )
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ["RES_OPTIONS"] = "attempts:0"
    folder = args.folder or Path(tempfile.mkdtemp(prefix="deadpool-pool-"))
    trial = Trial(folder, args.faults, args.seed, args.minutes)
    began = time.monotonic()
    try:
        trial.run()
    except Exception:
        print(f"see {folder}", flush=True)
        raise
    finally:
        for job in trial.jobs:
            job.local.stop()
        trial.site.stop()
    kills = {job.name: job.kills for job in trial.jobs}
    preempted = trial.preemptions()
    wrong = {
        job.name: differences(undisturbed(job, folder / f"{job.name}-undisturbed"), Results.read(job.folder / "out"))
        for job in trial.jobs
    }
    refused = sum(len(job.events("lease_refused")) for job in trial.jobs)
    result = {
        "faults": sum(kills.values()),
        "by_job": kills,
        "steps": {job.name: job.step() + 1 for job in trial.jobs},
        "leases": {m: sum(e["what"] == "pool_leased" for e in trial.site.events(m)) for m in MACHINES},
        "left_because_leased_elsewhere": refused,
        "shared": trial.shared(),
        "differences": wrong,
        "preempted": len(preempted),
        "preempted_within_1_s": sum(each < 1.0 for each in preempted),
        "preemption_s": {"median": statistics.median(preempted), "worst": max(preempted)},
        "seconds": round(time.monotonic() - began),
        "notes": trial.notes,
    }
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))
    print(json.dumps({key: value for key, value in result.items() if key != "notes"}, indent=1))
    in_time = all(each < args.preempted_within_s for each in preempted)
    good = not trial.shared() and not any(wrong.values()) and in_time
    sys.exit(0 if good and min(sum(kills.values()), len(preempted)) >= args.faults else 1)


if __name__ == "__main__":
    main()
