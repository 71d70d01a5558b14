"""The words of the command line: errors, and variables that nobody reads.

Errors in the words of the command line: settings by the names that the user gave them, and click's own in ours.

`tell_misspelt_variables`: what a command that starts something says of the variables that it finds.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from deadpool.config.environment import LOOKED_AT_VARIABLE, variable_of
from deadpool.config.resolution import misspelt_variables

_SETTING = re.compile(r"(?<![\w-])([a-z][A-Za-z0-9_]*)=")
_CAPITAL = re.compile(r"([A-Z])")
"""Fields of objects of Kubernetes have them: nprocPerNode is --nproc-per-node."""
_KINDS = {
    r"valid (int|integer)\b.*": "give a whole number",
    r"valid (float|number)\b.*": "give a number",
    r"valid boolean\b.*": "give true or false",
}
"""What is wrong with a value, as click or pydantic say it, depending on the version of typer."""
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


def as_given(text: str, words: Sequence[str], variables: Mapping[str, str]) -> str:
    """A setting is `--durable-every` where that was typed, and DEADPOOL_DURABLE_EVERY where that was set. In a file it
    has its own name."""

    def name(found: re.Match[str]) -> str:
        snake = _CAPITAL.sub(r"_\1", found[1]).lower()
        flag, variable = f"--{snake.replace('_', '-')}", variable_of(snake)
        if any(word == flag or word.startswith(f"{flag}=") for word in words):
            return f"{flag}="
        return f"{variable}=" if variable in variables else found[0]

    return _SETTING.sub(name, text)


def usage_sentence(error: Any) -> str:
    """`error` is click's, which typer brings along: its class has another module in each version."""
    message = str(error.format_message()).strip().rstrip(".")
    head, separator, reason = message.partition(": ")
    for pattern, what_now in _KINDS.items():
        if separator and re.search(pattern, reason):
            message = f"{head}: {what_now}"
    end = "" if message.endswith("?") else "."
    return f"{message}{end} `{' '.join(['deadpool', *_names(error.ctx), '--help'])}` says what there is"


def _names(context: Any) -> list[str]:
    """Returns the names of the command and of those that it is below, without the program's: that may be a path."""
    if context is None or context.parent is None:
        return []
    return [*_names(context.parent), str(context.info_name)]


def is_usage_error(error: BaseException) -> bool:
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def error_sentence(error: OSError) -> str:
    """For what the machine refuses, which may be the fault of the command."""
    what = error.strerror or str(error) or type(error).__name__
    where = f"{error.filename}: " if error.filename else ""
    now = _WHAT_NOW.get(error.errno or 0, "")
    return f"{where}{what}. {now}`deadpool --debug` before the subcommand shows where that came from"


def output_sentence(error: OSError) -> str:
    """For what cannot be printed, which is not the fault of the command."""
    reason = error.strerror or error
    return f"what this command prints cannot be written: {reason}. Make room, or send its output elsewhere"


def tell_misspelt_variables() -> None:
    """Once: commands that this one starts have the same variables."""
    if LOOKED_AT_VARIABLE in os.environ:
        return
    os.environ[LOOKED_AT_VARIABLE] = "1"
    for given, near in misspelt_variables(os.environ).items():
        print(f"deadpool: {given} is read by nothing: the nearest variable is {near}", file=sys.stderr)
