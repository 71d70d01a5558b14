"""One grammar for all commands that act on a job: `deadpool COMMAND [RUN] [--node N]`. Old forms say the new one."""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
import typer.main
from command import deadpool

from deadpool import cli
from deadpool.cli.arguments import RUN_HELP, for_a_job
from deadpool.cli.job_client import find_run_dir
from deadpool.cli.main import app
from deadpool.errors import ConfigError

ON_A_JOB = {
    "status", "show story", "show top", "show trace", "show journal", "show logs", "show picture", "show dashboard",
    "show report", "node kill", "node flip", "node drain", "node replace", "job audit", "job protect", "durable now",
}  # fmt: skip
MAKES_THE_FOLDER = {
    "run", "coordinator", "ssh", "slurm submit", "slurm script", "slurm batch", "slurm node", "slurm spare",
    "kubernetes coordinator",
}  # fmt: skip
NAMES_IT_BESIDE_SOMETHING_ELSE = {
    "doctor": "it looks at the folder that a job will get",
    "pool add-job": "its arguments are the job's name in the pool and its script",
}
ONE_WORD_EACH = {"--node": "node", "--rank": "rank", "--cause": "cause", "--scheme": "scheme"}


def commands(group: Any = None, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in (group or typer.main.get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


ALL = dict(commands())


def arguments_of(command: Any) -> list[Any]:
    return [each for each in command.params if each.param_type_name == "argument"]


def options_of(command: Any) -> dict[str, Any]:
    return {name: each for each in command.params if each.param_type_name == "option" for name in each.opts}


def test_commands_that_act_on_a_job_are_those_that_take_a_run():
    assert {name for name, command in ALL.items() if any(each.name == "run" for each in command.params)} == ON_A_JOB


@pytest.mark.parametrize("name", sorted(ON_A_JOB))
def test_command_takes_the_run_folder_first_and_nothing_else_by_its_place(name):
    (run,) = arguments_of(ALL[name])
    assert (run.name, run.metavar, run.help, run.required) == ("run", "RUN", RUN_HELP, False)
    assert options_of(ALL[name])["--run-dir"].hidden, "an old form"
    assert not any(option.required for option in options_of(ALL[name]).values()), "old forms give it by its place"


@pytest.mark.parametrize("name", sorted(set(ALL) - ON_A_JOB))
def test_no_other_command_looks_for_a_job_in_a_way_of_its_own(name):
    known = name in MAKES_THE_FOLDER or name in NAMES_IT_BESIDE_SOMETHING_ELSE
    assert known or "--run-dir" not in options_of(ALL[name])


def test_no_other_function_looks_for_the_run_folder():
    """A new command that does so without the shared argument is found here."""
    trees = [ast.parse(path.read_text()) for path in Path(cli.__file__).parent.rglob("*.py")]
    found = {node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef) and _looks(node)}
    of_jobs = {name.split()[-1] for name in ON_A_JOB - {"show journal"}}
    assert found == of_jobs | {"_folders", "_agents"}, "the first is of `show journal`, the second of `doctor`"


def _looks(function: ast.FunctionDef) -> bool:
    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    return any(isinstance(each, ast.Name) and each.id == "find_run_dir" for each in calls)


@pytest.mark.parametrize("name", sorted(ALL))
def test_options_have_one_word_each(name):
    for option, parameter in ONE_WORD_EACH.items():
        if option in options_of(ALL[name]):
            assert options_of(ALL[name])[option].name == parameter


def called(monkeypatch, capfd, *words: object, formerly: str | None) -> tuple[Any, str]:
    """What a command gets for these words, and what is said on stderr."""
    got: dict[str, Any] = {}
    program = typer.Typer()

    @program.command("leave")
    @for_a_job(formerly=formerly)
    def leave(
        run: Path | None,
        node: str | None = None,
        folder: Annotated[list[Path] | None, typer.Option()] = None,
        json: bool = False,
    ) -> None:
        got.update(run=run, node=node, folder=folder, json=json)

    program.command("other")(lambda: None)
    monkeypatch.setattr(sys, "argv", ["a/path/to/deadpool", "leave", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        program()
    said = capfd.readouterr()
    assert (ended.value.code, said.out) == (0, ""), said
    return got, said.err


NEW = "deadpool: this form ends with the next release; the new one is: "


@pytest.mark.parametrize(
    ("words", "run", "node", "told"),
    [
        ([], None, None, None),
        (["--node", "n3"], None, "n3", None),
        (["{run}", "--node", "n3"], "{run}", "n3", None),
        (["{run}"], "{run}", None, None),
        (["--node", "n3", "n4"], "n4", "n3", None),
        (["some/where"], "some/where", None, None),
        (["n3"], None, "n3", "deadpool leave --node n3"),
        (["n3", "--json"], None, "n3", "deadpool leave --node n3"),
        (["--run-dir", "{run}", "n3"], "{run}", "n3", "deadpool leave {run} --node n3"),
        (["--run-dir={run}", "--node", "n3"], "{run}", "n3", "deadpool leave {run}"),
    ],
)
def test_node_that_is_to_leave(tmp_path, monkeypatch, capfd, words, run, node, told):
    """`n3` is a node as long as there is no such folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    filled = [word.format(run=tmp_path / "run") for word in words]
    got, said = called(monkeypatch, capfd, *filled, formerly="node")
    assert got["run"] == (Path(run.format(run=tmp_path / "run")) if run else None)
    assert got["node"] == node
    assert said == (f"{NEW}{told.format(run=tmp_path / 'run')}\n" if told else "")


def test_folder_with_the_name_of_a_node_is_a_run(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "n3").mkdir()
    got, said = called(monkeypatch, capfd, "n3", formerly="node")
    assert (got["run"], got["node"], said) == (Path("n3"), None, "")


def test_folders_of_journals(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "journal").mkdir(parents=True)
    (tmp_path / "pages").mkdir()
    got, said = called(monkeypatch, capfd, "run", formerly="folder")
    assert (got["run"], got["folder"] or None, said) == (Path("run"), None, "")
    got, said = called(monkeypatch, capfd, "pages", formerly="folder")
    assert (got["run"], got["folder"], said) == (None, [Path("pages")], f"{NEW}deadpool leave --folder pages\n")
    got, said = called(monkeypatch, capfd, "pages", "run", formerly="folder")
    assert (got["run"], got["folder"]) == (None, [Path("pages"), Path("run")])
    assert said == f"{NEW}deadpool leave --folder pages --folder run\n"


def test_folder_given_twice(tmp_path, monkeypatch, capfd):
    program = typer.Typer()
    program.command()(for_a_job()(lambda run: None))
    monkeypatch.setattr(sys, "argv", ["deadpool", "a", "--run-dir", "b"])
    with pytest.raises(ConfigError, match="given twice, as a and as --run-dir b"):
        program()


def test_newest_job_is_the_one_that_began_last(tmp_path, monkeypatch):
    """Not the one whose folder has the last name: --run-dir may have given any."""
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(["m-newest", "z-older", "a-oldest"]):
        job = tmp_path / "deadpool-runs" / name / "job.json"
        job.parent.mkdir(parents=True)
        job.write_text("{}")
        os.utime(job, (1e9 - age, 1e9 - age))
    (tmp_path / "deadpool-runs" / "zz-not-begun").mkdir()
    assert find_run_dir(None).path.name == "m-newest"


def test_old_and_new_forms_of_real_commands_answer_the_same(tmp_path, monkeypatch):
    milestones = [{"what": "fault", "reason": "gone", "ranks": [0], "node": "n0"}, {"what": "fenced"}]
    milestones += [{"what": "planned", "step": 7, "lost_steps": 0}, {"what": "prepared"}, {"what": "go"}]
    records = [{"t": 1.0 + t, "cause": f"fault-{n}", **each} for n in (1, 2) for t, each in enumerate(milestones)]
    run = tmp_path / "deadpool-runs" / "first"
    run.mkdir(parents=True)
    (run / "job.json").write_text("{}")
    (run / "events.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    monkeypatch.chdir(tmp_path)
    new = deadpool("show", "story", run, "--cause", "fault-2", "--json")
    assert [each["cause"] for each in json.loads(new.stdout)] == ["fault-2"] and new.stderr == ""
    assert deadpool("show", "story", "--cause", "fault-2", "--json").stdout == new.stdout, "the newest job here"
    old = deadpool("show", "story", "fault-2", "--run-dir", run, "--json")
    assert (old.stdout, old.stderr) == (new.stdout, f"{NEW}deadpool show story {run} --cause fault-2\n")
