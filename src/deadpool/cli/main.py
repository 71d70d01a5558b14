"""The `deadpool` command. There is one file per subcommand, which imports what it needs when it is called."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, Any, NoReturn

import typer

from deadpool import __version__
from deadpool.cli import doctor, plan
from deadpool.cli.act import audit, drain, durable, kill, protect, replace, salvage
from deadpool.cli.engines import kubernetes, pool, slurm, ssh
from deadpool.cli.lab import CommandsAndLab, add_commands
from deadpool.cli.show import (
    dashboard,
    journal,
    logs,
    picture,
    report,
    status,
    story,
    top,
    trace,  # fmt: skip
)
from deadpool.cli.start import agent, coordinator, demo, run
from deadpool.cli.words import as_given, is_usage_error, output_sentence, usage_sentence
from deadpool.config.environment import DEBUG_VARIABLE
from deadpool.errors import DeadPoolError

app = typer.Typer(
    cls=CommandsAndLab,
    help="Keeps a PyTorch training job running when machines die.",
    no_args_is_help=True,
    add_completion=False,
)
SCRIPT_LAST = {"allow_interspersed_args": False, "ignore_unknown_options": True}


_ANOTHER = "Give another path, or the right to use this one; "
_WHAT_NOW = {
    errno.EACCES: _ANOTHER,
    errno.EPERM: _ANOTHER,
    errno.EROFS: "Give another path; ",
    errno.ENOENT: "Give the path of what is there; ",
    errno.EEXIST: "Give another path; ",
    errno.ENOTDIR: "Give another path; ",
    errno.EISDIR: "Give the path of a file; ",
    errno.ENOSPC: "Make room there, or give another path; ",
    errno.EDQUOT: "Make room there, or give another path; ",
}


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


app.command(context_settings=SCRIPT_LAST)(run.run)
app.command(context_settings=SCRIPT_LAST)(agent.agent)
app.command()(coordinator.coordinator)
app.command(context_settings=SCRIPT_LAST)(ssh.ssh)
app.command()(status.status)
app.command()(story.story)
app.command()(top.top)
app.command()(trace.trace)
app.command()(journal.journal)
app.command()(logs.logs)
app.command()(picture.picture)
app.command()(plan.plan)
app.command()(dashboard.dashboard)
app.command()(report.report)
app.command()(kill.kill)
app.command()(drain.drain)
app.command()(replace.replace)
app.command()(audit.audit)
app.command()(protect.protect)
app.command()(demo.demo)
app.command()(doctor.doctor)
app.command()(salvage.salvage)
add_commands(app)
app.add_typer(durable.app, name="durable")
app.add_typer(kubernetes.app, name="kubernetes")
app.add_typer(pool.app, name="pool")
app.add_typer(slurm.app, name="slurm")


def main() -> None:
    """What a person or a machine can cause ends in a sentence and code 2; a traceback is a bug of ours."""
    try:
        code = app(standalone_mode=False)
    except (DeadPoolError, OSError) as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        _refuse(
            as_given(str(error), sys.argv[1:], os.environ) if isinstance(error, DeadPoolError) else _sentence(error)
        )
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


def _sentence(error: OSError) -> str:
    what = error.strerror or str(error) or type(error).__name__
    where = f"{error.filename}: " if error.filename else ""
    now = _WHAT_NOW.get(error.errno or 0, "")
    return f"{where}{what}. {now}`deadpool --debug` before the subcommand shows where that came from"


if __name__ == "__main__":
    main()
