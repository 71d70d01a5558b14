"""Runs the matrix of the integrations, library by library, and prints a table. Started by scripts/frameworks.

Each library has its own pytest, whose output goes to .frameworks/LIBRARY.log, and whose outcomes the plugin beside this
file (matrix_results.py) appends to .frameworks/LIBRARY.jsonl. That file is what a later run goes on from. Those of the
newest releases begin with newest-.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from matrix_results import Results

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".frameworks"
VENV = Path(sys.prefix)
IS_NEWEST = VENV.name == "newest"  # scripts/frameworks has chosen it
BASE = ("torch", "-e", f"{ROOT}[tls]", "-e", f"{ROOT}/lab", "pytest", "pytest-timeout", "pytest-xdist", "torchdata")
HUGGING_FACE = ("transformers", "accelerate")
SPMD_TYPES = "spmd_types==0.2.3"  # as torchtitan 0.3 asks for
TORCHTITAN = ("torchtitan", "tyro", "docstring_parser", "typeguard", SPMD_TYPES, "einops", "torch_checkpointing")
TRITON = () if IS_NEWEST else ("triton==3.9.0",)  # not in constraints.txt: torch for GPUs brings its own
LEFT_OVER, BROKEN = 3, 1  # exit codes
PYTEST_CODES = (0, 1, 5)  # all passed, some failed, nothing left to run


@dataclass(frozen=True, slots=True)
class Library:
    package: str
    tests: tuple[str, ...]
    install: tuple[tuple[str, ...], ...]  # arguments of pip, one call after the other
    environment: dict[str, str] = field(default_factory=dict)


LIBRARIES = {
    "accelerate": Library("accelerate", ("test_accelerate.py",), (HUGGING_FACE,)),
    "transformers": Library("transformers", ("test_transformers.py",), (HUGGING_FACE,)),
    "trl": Library("trl", ("test_trl.py", "test_grpo.py"), ((*HUGGING_FACE, "trl", "peft", "datasets"),)),
    "lightning": Library("lightning", ("test_lightning.py",), (("lightning",),)),
    # It asks for an older datasets, and for triton, which CPUs do not need but it imports.
    "torchtitan": Library(
        "torchtitan",
        ("test_torchtitan.py",),
        (
            (*HUGGING_FACE, "datasets", "tensorboard"),
            ("--no-deps", *TORCHTITAN, *TRITON),
        ),
    ),
    # Built from source without its kernels, for the torch that is installed.
    "deepspeed": Library(
        "deepspeed",
        ("test_deepspeed.py",),
        (
            ("wheel", "setuptools", "hjson", "py-cpuinfo", "ninja", "einops", "pydantic", "tqdm"),
            ("--no-build-isolation", "--no-deps", "deepspeed"),
        ),
        {"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"},
    ),
    # The second needs Megatron-LM itself, in a folder that the variable MEGATRON_LM names.
    "megatron": Library(
        "megatron-core", ("test_megatron.py", "test_pretrain.py"), (("--no-deps", "megatron-core", *TRITON),)
    ),
}


def main() -> int:
    args = parse()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends its pytest, and prints the table
    chosen = args.only or list(LIBRARIES)
    deadline = time.monotonic() + 60 * args.limit_minutes
    for name in chosen:
        for packages in (BASE, *LIBRARIES[name].install):
            install(packages, LIBRARIES[name].environment)
    sources = fingerprint_of_sources()
    results = {name: Results(path_of(name, "jsonl"), sources, versions_of(name), fresh=args.fresh) for name in chosen}
    try:
        for name in chosen:
            if not run(name, results[name], args.jobs, deadline, is_sample=args.sample):
                break
    except KeyboardInterrupt:
        print("\nended; the same command goes on from here")
    print_table(results)
    if any(each.failed for each in results.values()):
        return BROKEN
    return 0 if all(each.is_complete for each in results.values()) else LEFT_OVER


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/frameworks", description="The matrix of the integrations.")
    parser.add_argument("--only", action="append", choices=LIBRARIES, help="can be given several times")
    parser.add_argument("--limit-minutes", type=float, default=240.0)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 4), help="cells at the same time")
    parser.add_argument("--fresh", action="store_true", help="also what has passed before")
    parser.add_argument("--newest", action="store_true", help="the newest release of each, in .frameworks/newest")
    parser.add_argument("--sample", action="store_true", help="each layout once: an audit of exactness, then a fault")
    return parser.parse_args()


def fingerprint_of_sources() -> str:
    hasher = hashlib.sha256()
    folders = (("src", "*.py"), ("lab", "*.py"), ("tests/e2e", "*.py"), ("examples", "*.py"))
    paths = [path for folder, pattern in folders for path in sorted((ROOT / folder).rglob(pattern))]
    for path in [ROOT / "constraints.txt", ROOT / "tests/conftest.py", *paths]:
        hasher.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return hasher.hexdigest()


def path_of(name: str, kind: str) -> Path:
    return FOLDER / f"{'newest-' if IS_NEWEST else ''}{name}.{kind}"


def versions_of(name: str) -> dict[str, str]:
    """Asked of another process: this one has begun before they were installed."""
    packages = ["torch", LIBRARIES[name].package]
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    found = subprocess.run([sys.executable, "-c", code, *packages], check=True, capture_output=True, text=True)
    return dict(zip(packages, found.stdout.split(), strict=True))


def run(name: str, results: Results, jobs: int, deadline: float, *, is_sample: bool) -> bool:
    """To its end. False: the time is over."""
    library, path = LIBRARIES[name], path_of(name, "log")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "matrix_results", "--timeout", "300"]
    command += ["--numprocesses", str(jobs)] if jobs > 1 else []
    command += [str(ROOT / "tests/e2e" / test) for test in library.tests]
    environment = os.environ | library.environment
    environment |= {"HF_HUB_OFFLINE": "1", "MATRIX_RESULTS": str(results.path), "PYTHONPATH": str(ROOT / "scripts")}
    environment |= {"MATRIX_SAMPLE": "1"} if is_sample else {}
    print(f"== {name}, {results.versions}: tests run, output in {FOLDER.name}/{path.name}", flush=True)
    with path.open("w") as log:
        pytest = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            while pytest.poll() is None and time.monotonic() < deadline:
                time.sleep(0.5)
                for line in results.follow():
                    print(f"{name} {line}", flush=True)
        finally:
            was_ended = pytest.poll() is None
            end(pytest)
    for line in results.follow():
        print(f"{name} {line}", flush=True)
    if not was_ended and pytest.returncode not in PYTEST_CODES:
        raise SystemExit(f"pytest ended with {pytest.returncode}: see {path}")
    return time.monotonic() < deadline


def end(pytest: subprocess.Popen[bytes]) -> None:
    """It ends the jobs of its test first."""
    if pytest.poll() is None:
        pytest.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            pytest.wait(60)
    if pytest.poll() is None:
        pytest.kill()
        pytest.wait()


def install(packages: tuple[str, ...], environment: dict[str, str]) -> None:
    """Once for each set of packages and pinned versions; the newest ones are looked for weekly."""
    wanted = date.today().strftime("%G-%V").encode() if IS_NEWEST else (ROOT / "constraints.txt").read_bytes()
    wanted += (ROOT / "pyproject.toml").read_bytes() + repr(packages).encode()
    stamp = VENV / f"installed-{hashlib.sha256(wanted).hexdigest()[:16]}"
    if stamp.exists():
        return
    print(f"== installing {' '.join(each for each in packages if not each.startswith('-'))}", flush=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--upgrade"] if IS_NEWEST else ["-c", "constraints.txt"]
    subprocess.run([*pip, *packages], cwd=ROOT, env=os.environ | environment, check=True)
    stamp.touch()


def print_table(results: dict[str, Results]) -> None:
    heads = ("framework", "versions", "cells", "passed", "differed", "failed", "refusals", "audits", "not run", "time")
    rows = [heads, *((name, each.versions, *each.row()) for name, each in results.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
