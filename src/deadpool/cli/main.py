"""The `deadpool` command. There is one file per subcommand, which imports what it needs when it is called."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from deadpool import __version__
from deadpool.cli import command_groups, doctor, durable, job, plan
from deadpool.cli.command_groups import CommandsByOldNames
from deadpool.cli.engines import kubernetes, pool, slurm, ssh
from deadpool.cli.show import pages, status, written
from deadpool.cli.start import agent, coordinator, demo, run
from deadpool.cli.words import as_given, error_sentence, is_usage_error, output_sentence, usage_sentence
from deadpool.config.environment import DEBUG_VARIABLE
from deadpool.errors import DeadPoolError

_SCRIPT_LAST = {"allow_interspersed_args": False, "ignore_unknown_options": True}
_TAKE_A_SCRIPT = (run.run, ssh.ssh, agent.agent)


def _in_short(function: Callable[..., None]) -> str:
    """The first sentence of what its own help says, for the help of all."""
    return " ".join(re.split(r"(?<=\.)\s", function.__doc__ or "")[0].split())


def _group(help: str, *functions: Callable[..., None]) -> typer.Typer:
    group = typer.Typer(help=help, no_args_is_help=True)
    for function in functions:
        group.command(short_help=_in_short(function))(function)
    return group


PANELS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    "Before a job": {"demo": demo.demo, "plan": plan.plan, "doctor": doctor.doctor},
    "Start a job": {
        "run": run.run,
        "slurm": slurm.app,
        "kubernetes": kubernetes.app,
        "ssh": ssh.ssh,
        "coordinator": coordinator.coordinator,
        "agent": agent.agent,
    },
    "Look at a job": {
        "status": status.status,
        "show": _group(
            "Show recoveries, logs and values of a job; on a terminal, in a browser, as files.",
            written.story,
            status.top,
            written.logs,
            written.journal,
            pages.dashboard,
            pages.report,
            pages.picture,
            pages.trace,
        ),
    },
    "Act on a job": {
        "node": _group("Take a node out of a running job, or hit one.", job.drain, job.replace, job.kill, job.flip),
        "job": _group(
            "Change how a running job is protected, or find out whether it is exact.", job.protect, job.audit
        ),
        "durable": durable.app,
    },
    "Several jobs": {"pool": pool.app},
    "Develop DeadPool": {"lab": command_groups.lab_app},
}
"""What `deadpool --help` shows, in the order of a user's day."""
_ORDER = [name for panel in PANELS.values() for name in panel]


class _Commands(CommandsByOldNames):
    """typer would put commands before groups, and panels follow the order of commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        return _ORDER


app = typer.Typer(
    cls=_Commands,
    help="Keeps a PyTorch training job running when machines die.",
    no_args_is_help=True,
    add_completion=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"deadpool {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="print a traceback where a sentence would do")] = False,
) -> None:
    """The options that come before a subcommand."""
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"  # for the processes that it starts as well


for _panel, _commands in PANELS.items():
    for _name, _what in _commands.items():
        if isinstance(_what, typer.Typer):
            app.add_typer(_what, name=_name, rich_help_panel=_panel)
        else:
            _settings = _SCRIPT_LAST if _what in _TAKE_A_SCRIPT else None
            app.command(_name, context_settings=_settings, rich_help_panel=_panel, short_help=_in_short(_what))(_what)


def main() -> None:
    """What a person or a machine can cause ends in a sentence and code 2; a traceback is a bug of ours."""
    try:
        code = app(standalone_mode=False)
    except (DeadPoolError, OSError) as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        _refuse(error_sentence(error) if isinstance(error, OSError) else as_given(str(error), sys.argv[1:], os.environ))
    except Exception as error:
        if not is_usage_error(error):
            raise
        _refuse_usage(error)
    _finish_output()
    sys.exit(code or 0)


def _refuse(sentence: str) -> NoReturn:
    _finish_output()
    print(f"deadpool: {sentence}", file=sys.stderr)
    sys.exit(2)


def _refuse_usage(error: Any) -> NoReturn:
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        sys.exit(error.exit_code)
    _refuse(usage_sentence(error))


def _finish_output() -> None:
    """Here, while there is somebody who tells of it: python itself would say "Exception ignored" at its end. Where a
    reader has gone, as in `deadpool status | head`, nobody wants to know."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what python still has in its buffer
        if error.errno != errno.EPIPE:
            print(f"deadpool: {output_sentence(error)}", file=sys.stderr)
        sys.exit(1 if error.errno == errno.EPIPE else 2)


if __name__ == "__main__":
    main()
