"""What process a script finds itself in is the same under torchrun and under DeadPool, as a survivor and as a newcomer.

What may differ is listed here, each with its reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gated_job import EVERY_STEP, GatedJob
from torchrun import torchrun

from deadpool.config.job_config import JobConfig

SCRIPT = Path(__file__).with_name("state_script.py")
ONLY_OURS = ("DEADPOOL_", "E2E_", "PYTEST_", "CUDA_DEVICE_MAX_COPY_CONNECTIONS")
"""What the agent tells its trainers, this test its script, and a trainer CUDA, if its torch was built with that."""
ONLY_TORCHRUNS = {
    "TORCHELASTIC_USE_AGENT_STORE",  # torchrun serves a store at MASTER_PORT; here nobody does
    "TORCHELASTIC_SIGNALS_TO_HANDLE",  # that torchrun itself handles
    "TORCHINDUCTOR_CACHE_DIR",  # torch sets it where it first imports some of its parts: here in the fork server
    "TORCHELASTIC_ERROR_FILE",  # a file that torchrun reads a failed rank's traceback from
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",  # torchrun's 1 would end survivors: join() sets it where NCCL is used
}
OTHER_VALUES = {
    "MASTER_ADDR", "MASTER_PORT",  # a job meets where it is
    "TORCHELASTIC_RUN_ID",  # names the launcher's run
    "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE",  # two nodes here, one there
    "TMPDIR",  # of the helper that runs torchrun
}  # fmt: skip


@pytest.fixture(scope="module")
def under_torchrun(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("torchrun")
    torchrun(2, folder, str(SCRIPT), str(folder / "out"), as_is=True)
    return {key: state for key, _, state in states(folder / "out")}


@pytest.fixture
def under_deadpool(tmp_path: Path) -> Callable[..., Path]:
    """With a fork server of its own, as `deadpool run` starts it: that of other tests was started otherwise."""

    def run(during: Callable[[GatedJob], None] | None = None) -> Path:
        settings = JobConfig(nodes=2, spares=1, **EVERY_STEP).checked()  # type: ignore[arg-type]
        gated = GatedJob(settings, "", "", tmp_path, None, script=SCRIPT, arguments=[])  # type: ignore[arg-type]
        out = tmp_path / "states"
        gated.trial.job.script = [str(SCRIPT), str(out)]
        if during is None:
            gated.open_gate(3)
        gated.trial.run(lambda _: during(gated) if during is not None else None)
        return out

    return run


def states(folder: Path) -> list[tuple[tuple[int, str], int, dict[str, Any]]]:
    found = []
    for path in sorted(folder.iterdir()):
        rank, when, process, _ = path.name.split(".")
        found.append(((int(rank), when), int(process), json.loads(path.read_text())))
    return found


def differences(when: str, expected: dict[str, Any], found: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    expected, found = comparable(expected), comparable(found)
    if when in ("first", "imported"):  # a trainer has imported torch before its script does, and more of it
        found["warnings"] = [each for each in found["warnings"] if each in expected["warnings"]]
    keys = sorted(expected.keys() | found.keys())
    return {key: (expected.get(key), found.get(key)) for key in keys if expected.get(key) != found.get(key)}


def comparable(state: dict[str, Any]) -> dict[str, Any]:
    state = dict(state)
    state["argv"] = [argument for argument in state["argv"] if not argument.endswith(("/out", "/states"))]
    if "orig_argv" in state:
        state["orig_argv"] = [word for word in state["orig_argv"] if not word.endswith(("/out", "/states"))]
    if "environment" in state:
        for name, value in state.pop("environment").items():
            if not name.startswith(ONLY_OURS) and name not in ONLY_TORCHRUNS:
                state[f"${name}"] = "set" if name in OTHER_VALUES else value
    state.pop("first seed", None)  # drawn by chance; see test_undisturbed
    if "threads" in state:
        state["threads"] = [name for name in state["threads"] if not name.startswith("deadpool")]
    return state


def assert_alike(expected: dict[tuple[int, str], dict[str, Any]], folder: Path, kept: int, died: int | None) -> None:
    """`kept`: so many processes have come to the end. Generators of a spare are not those of its rank before its loop,
    where it does not write; after it they are."""
    found = states(folder)
    assert len({process for (_, when), process, _ in found if when == "end"}) == kept
    for key, process, state in found:
        assert differences(key[1], expected[key], state) == {}, f"rank and moment {key}, process {process}"
    assert {key for key, _, _ in found} == set(expected)
    assert died is None or died in {process for _, process, _ in found}


@pytest.mark.thorough
def test_undisturbed(under_torchrun, under_deadpool):
    folder = under_deadpool()
    assert_alike(under_torchrun, folder, 2, None)
    seeds = [state["first seed"] for (_, when), _, state in states(folder) if when == "imported"]
    assert len(set(seeds)) == len(seeds), "ranks of a script that seeds nothing draw different numbers"


@pytest.mark.thorough
def test_survivor_and_newcomer(under_torchrun, under_deadpool):
    died = []

    def during(gated: GatedJob) -> None:
        died.append(gated.await_gate(3))
        gated.trial.await_event("rehearsed")
        gated.kill_node_at_gate("n1", 3)

    folder = under_deadpool(during)
    assert_alike(under_torchrun, folder, 2, died[0])
