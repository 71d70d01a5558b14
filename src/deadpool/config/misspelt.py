"""Variables of the environment that look like ours and that nothing reads: a misspelt one would be ignored silently."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from deadpool.config import environment as names
from deadpool.config.environment import PREFIX
from deadpool.config.job_config import SETTINGS

_LEAST_LIKENESS = 0.75
_OF_COMMANDS = ("RUN_DIR", "EVENT", "PARKED_")
"""Beginnings of those that hooks and the command of a parked spare get: they may run `deadpool` too."""


def misspelt_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The nearest name of ours, by the name that was given. One that is near to none may be of somebody else."""
    known = {each.variable.removeprefix(PREFIX) for each in SETTINGS}
    known |= {value.removeprefix(PREFIX) for name, value in vars(names).items() if name.endswith("_VARIABLE")}
    found = {}
    for variable in sorted(variables):
        word = variable.removeprefix(PREFIX)
        if not variable.startswith(PREFIX) or word in known or word.startswith(_OF_COMMANDS):
            continue
        if near := difflib.get_close_matches(word, known, n=1, cutoff=_LEAST_LIKENESS):
            found[variable] = PREFIX + near[0]
    return found
