"""What a command that starts something says of the variables that it finds."""

from __future__ import annotations

import os
import sys

from deadpool.config.environment import LOOKED_AT_VARIABLE
from deadpool.config.misspelt import misspelt_variables


def tell_misspelt_variables() -> None:
    """Once: commands that this one starts have the same variables."""
    if LOOKED_AT_VARIABLE in os.environ:
        return
    os.environ[LOOKED_AT_VARIABLE] = "1"
    for given, near in misspelt_variables(os.environ).items():
        print(f"deadpool: {given} is read by nothing: the nearest variable is {near}", file=sys.stderr)
