"""`deadpool run` starts a whole job on this machine. The program that a job runs is given as torchrun takes it, and
turned into what would follow `python`:

train.py --lr 1        a script                              python train.py --lr 1
-m package.train       a module, also as --module            python -m package.train
--no-python CMD ...    a program; only a python one can be protected, since trainers are forked from an interpreter
                       that has imported torch: then it is one of the two above
"""

from __future__ import annotations

import importlib.machinery
import re
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from deadpool.cli.arguments import check_health_root, folder_given_as
from deadpool.cli.interrupts import CODE_INTERRUPTED, ignore_interrupts, stop_on_interrupts
from deadpool.cli.start.options import with_settings
from deadpool.cli.words import tell_misspelt_variables
from deadpool.config.values import RUN
from deadpool.control.console import print_line
from deadpool.errors import ConfigError

_MOST_NODES_HERE = 1024
"""Each is several processes of this machine."""

MODULE_FLAG = "-m"
MODULE_HELP = "the script is the name of a module, which is run as `python -m` would"
NO_PYTHON_HELP = "the script is a command that starts with this python; its script or module is run"
PRELOAD_HELP = "a package to import before trainers are forked (repeatable), so that they start faster"
SCRIPT_HELP = "the training script, or -m and a module, and its arguments"
EMPTY_SCRIPT = "the script is empty, perhaps from a variable of the shell that is not set: give its path"
_INTERPRETER = re.compile(r"python(\d+(\.\d+)?)?$")
_HARMLESS = {"-u", "-B"}
"""Options of python that change nothing here: the output of trainers is unbuffered anyway."""


@with_settings(RUN)
def run(
    script: Annotated[list[str], typer.Argument(help=SCRIPT_HELP)],
    module: Annotated[bool, typer.Option("--module", "-m", help=MODULE_HELP)] = False,
    no_python: Annotated[bool, typer.Option("--no-python", help=NO_PYTHON_HELP)] = False,
    preload: Annotated[list[str] | None, typer.Option(metavar="PACKAGE", help=PRELOAD_HELP)] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            parser=folder_given_as("--run-dir"),
            help="folder for events and logs (default: a new one under ./deadpool-runs)",
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with any of the settings below")] = None,
    *,
    flags: dict[str, Any],
) -> None:
    """Start a coordinator and one agent per node here, and train until the script has ended on every rank."""
    from deadpool.cli.start.addresses import at_interface
    from deadpool.config.resolution import resolve
    from deadpool.control.agent.threads import bulk_cpus
    from deadpool.control.agent.transports import chosen_way
    from deadpool.control.launch.launcher import LocalJob, new_run_dir, running
    from deadpool.control.launch.run_dir import RunDir
    from deadpool.views.metrics.endpoint import check_package
    from deadpool.wire.credentials import load_tls

    tell_misspelt_variables()
    settings = resolve(flags, file=config)
    _check_one_machine(settings.nodes, settings.spares)
    check_health_root(settings.health_root)
    program, packages = checked_program(script, module=module, no_python=no_python), checked_preload(preload)
    settings.check_fault_nodes()
    bulk_cpus(settings.bulk_cpus)
    chosen_way(settings.transport, encrypted=settings.tls != "off")
    settings.racks()  # what cannot be used is refused before any process is started
    settings = at_interface(settings)
    load_tls(settings.tls, serving=True)
    check_package(settings.metrics_port)
    settings.check_webhooks()
    folder = RunDir.create(run_dir) if run_dir else new_run_dir()
    stop_on_interrupts()
    try:
        print_line(f"[deadpool] run folder: {folder.path}")
        with running(LocalJob(settings, folder, program, preload=packages)) as job:
            code = job.wait()
        ignore_interrupts()
    except KeyboardInterrupt:
        ignore_interrupts()
        print_line("[deadpool] interrupted: all processes of the job are ended")
        code = CODE_INTERRUPTED
    raise typer.Exit(code)


def _check_one_machine(nodes: int, spares: int) -> None:
    for name, count in (("nodes", nodes), ("spares", spares)):
        if count > _MOST_NODES_HERE:
            raise ConfigError(
                f"{name}={count} cannot be used: `deadpool run` starts all nodes on this machine. Give at most "
                f"{_MOST_NODES_HERE}, or start the job by slurm, kubernetes or ssh"
            )


def checked_preload(packages: list[str] | None) -> tuple[str, ...]:
    """Whether they are there is known where they are imported."""
    if "" in (packages or ()):
        raise ConfigError("preload='' cannot be used: give the name of a package, or leave it out")
    return tuple(packages or ())


def checked_program(words: list[str], *, module: bool, no_python: bool) -> list[str]:
    """What would follow `python`. Raises ConfigError if it cannot be run."""
    if module and no_python:
        raise ConfigError("--module and --no-python cannot be used together: give one of them")
    if module:
        words = [MODULE_FLAG, *words]
    if no_python:
        words = _without_interpreter(words)
    if not words[0]:
        raise ConfigError(EMPTY_SCRIPT)
    if words[0] == MODULE_FLAG:
        _check_module(words[1:])
    elif words[0].startswith("-"):
        raise ConfigError(f"there is no option {words[0]}: `--help` lists all; those of the script follow its name")
    else:
        _check_script(Path(words[0]))
    return words


def _check_script(script: Path) -> None:
    """A folder with a __main__.py is a script too, as for python."""
    if not script.exists():
        raise ConfigError(f"script={str(script)!r} is not a file: give the path of a training script")
    if script.is_dir():
        if not (script / "__main__.py").is_file():
            raise ConfigError(f"script={str(script)!r} is a folder without a __main__.py: give the path of a script")
        return
    if not script.is_file() or script.absolute().is_relative_to("/dev") or script.absolute().is_relative_to("/proc"):
        raise ConfigError(
            f"script={str(script)!r} is no regular file: every rank, and each process that takes a rank later, reads "
            "the script anew. Write it to a file and give its path"
        )
    if script.stat().st_size == 0:
        raise ConfigError(f"script={str(script)!r} is empty: give the path of a training script")


def _check_module(words: list[str]) -> None:
    """Checks only that the package exists: to find a module in it, the package would have to be imported."""
    if not words or not words[0]:
        raise ConfigError("-m names no module: give one, as in -m package.train")
    top = words[0].partition(".")[0]
    if importlib.machinery.PathFinder.find_spec(top, [str(Path.cwd()), *sys.path]) is None:
        raise ConfigError(
            f"module={words[0]!r} cannot be found: {top!r} is neither in {Path.cwd()} nor installed. Correct "
            "the name, or start in the folder that has it"
        )


def _without_interpreter(words: list[str]) -> list[str]:
    program, *rest = words
    if _INTERPRETER.match(Path(program).name) is None:
        raise ConfigError(
            f"--no-python {program} cannot be protected: DeadPool works inside of python processes only. Give a "
            "python script, or start this command with torchrun, without protection"
        )
    _check_interpreter(program)
    while rest and rest[0] in _HARMLESS:
        rest = rest[1:]
    if not rest:
        raise ConfigError(f"--no-python {program} names nothing to run: give a script, or -m and a module")
    if rest[0].startswith("-") and rest[0] != MODULE_FLAG:
        raise ConfigError(
            f"--no-python {program} {rest[0]} cannot be used: trainers are forked from an interpreter that runs "
            "already. Give a script, or -m and a module"
        )
    return rest


def _check_interpreter(program: str) -> None:
    found = shutil.which(program)
    if found is None:
        raise ConfigError(f"--no-python {program} cannot be found: give the path of a python interpreter")
    if Path(found).absolute().parent.resolve() != Path(sys.executable).absolute().parent.resolve():
        raise ConfigError(
            f"--no-python {program} is {found}, and DeadPool runs in {sys.executable}: trainers are forked from that "
            "one. Install deadpool in the other, or leave --no-python out"
        )
