"""What `protect` of an integration takes and returns: one shape for all libraries, whoever owns the loop."""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deadpool import integrations
from deadpool.errors import ConfigError
from deadpool.trainer.interface import Job
from deadpool.trainer.library_job import LibraryJob, UnprotectedLibraryJob

FILES = {
    "accelerate": ("loop.py", "accelerator"),
    "deepspeed": ("engine.py", "engine"),
    "lightning": ("hooks.py", "trainer"),
    "megatron": ("hooks.py", "model"),
    "torchtitan": ("hooks.py", "trainer"),
    "transformers": ("hooks.py", "trainer"),
}


@pytest.mark.parametrize("library", FILES)
def test_protect_has_one_shape(library):
    """Read from its source: the libraries are not installed here."""
    file, protected = FILES[library]
    tree = ast.parse((Path(integrations.__file__).parent / library / file).read_text())
    (protect,) = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "protect"]
    assert [each.arg for each in protect.args.posonlyargs] == [protected]
    assert protect.args.args == [], "all others are given by keyword"
    assert "force" in [each.arg for each in protect.args.kwonlyargs]
    assert protect.args.kwarg is not None and protect.args.kwarg.arg == "objects"
    assert isinstance(protect.returns, ast.Name) and protect.returns.id == "Job"
    assert "from deadpool.trainer.interface import Job" in ast.unparse(tree)


def test_all_integrations_are_here():
    folders = Path(integrations.__file__).parent.iterdir()
    assert {each.name for each in folders if (each / "__init__.py").exists()} == set(FILES)


class Begun:
    """The job of a library that has begun its loop."""

    enabled = True

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **values: self.calls.append((name, *arguments, *values.items()))


def test_what_is_set_before_the_loop_holds_in_it():
    job, begun = LibraryJob("trainer.train()"), Begun()
    job.enabled = False
    job.log_to("a sink")  # type: ignore[arg-type]
    with job.pause("evaluation"):
        pass
    job.begin(begun)  # type: ignore[arg-type]
    assert not begun.enabled and begun.calls == [("log_to", "a sink")]
    job.enabled = True
    job.log(3, loss=1.0)
    job.durable(4, "there")
    assert begun.enabled and begun.calls[1:] == [("log", 3, ("loss", 1.0)), ("durable", 4, "there")]


def test_sinks_are_the_default_ones_where_none_are_given():
    job, begun = LibraryJob("trainer.train()"), Begun()
    job.begin(begun)  # type: ignore[arg-type]
    assert begun.calls == [("log_to",)]


@pytest.fixture(params=[LibraryJob, UnprotectedLibraryJob])
def job(request, tmp_path, monkeypatch) -> Iterator[Any]:
    monkeypatch.setenv("DEADPOOL_JOURNAL", str(tmp_path))
    made = request.param("trainer.train()")
    yield made
    with contextlib.suppress(AttributeError):
        made.close()


def test_steps_are_those_of_the_library(job):
    for ask in (job.steps, job.loop):
        with pytest.raises(ConfigError, match=r"those of the library's own loop: call trainer.train\(\)"):
            ask(10)


@pytest.mark.parametrize("method", ["log", "on_final", "durable"])
def test_what_belongs_into_a_step_is_refused_before_the_first_one(method):
    with pytest.raises(
        ConfigError, match=rf"job.{method}\(\) was called before the first step: trainer.fit\(\) begins"
    ):
        getattr(LibraryJob("trainer.fit()"), method)(0, print) if method != "log" else LibraryJob("trainer.fit()").log(
            0
        )


def test_unprotected_it_logs_each_step_once(tmp_path, monkeypatch):
    monkeypatch.setenv("DEADPOOL_JOURNAL", str(tmp_path))
    job: Job = UnprotectedLibraryJob("trainer.train()")
    done: list[str] = []
    job.log(0, loss=2.0)
    job.log(0, rate=0.1)
    job.log(1, loss=1.5)
    job.on_final(1, lambda: done.append("at once"))
    assert done == ["at once"] and not job.rehearses
    assert isinstance(job, UnprotectedLibraryJob)
    job.close()
    lines = [json.loads(line) for file in tmp_path.iterdir() for line in file.read_text().splitlines()]
    assert [(each["step"], each["values"]) for each in lines if "values" in each] == [
        (0, {"loss": 2.0, "rate": 0.1}),
        (1, {"loss": 1.5}),
    ]
