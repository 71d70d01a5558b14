"""How a setting of a job is described: once, where it is declared.

Its flag, its environment variable and its help follow from that description.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from deadpool.config.environment import variable_of

RUN, COORDINATOR, AGENT = "run", "coordinator", "agent"
"""Commands that have flags for settings."""
JOB = (RUN, COORDINATOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    name: str
    kind: str  # the annotation of the field, e.g. "int"
    default: Any
    help: str
    commands: tuple[str, ...]
    word: str  # the flag without dashes
    default_text: str

    @property
    def flag(self) -> str:
        return f"--{self.word}"

    @property
    def variable(self) -> str:
        return variable_of(self.name)

    def help_text(self) -> str:
        text = self.default_text or (str(self.default) if self.default not in ((), "", None) else "")
        return f"{self.help} (default: {text})" if text and not isinstance(self.default, bool) else self.help

    def words(self, value: Any) -> list[str]:
        """The flag with this value, as it is passed on to another command."""
        if isinstance(value, tuple):
            return [f"{self.flag}={each}" for each in value]
        if isinstance(value, bool):
            return [self.flag if value else f"--no-{self.word}"]  # the other command may have it in its environment
        return [f"{self.flag}={value}"]


def setting(default: Any, help: str, *, commands: tuple[str, ...] = JOB, word: str = "", default_text: str = "") -> Any:
    """A field of a settings class. `word` is its flag where that is not its name."""
    described = {"help": help, "commands": commands, "word": word, "default_text": default_text}
    return dataclasses.field(default=default, metadata=described)


def settings_of(config_class: Any) -> tuple[Setting, ...]:
    return tuple(
        Setting(
            name=field.name,
            kind=str(field.type),
            default=field.default,
            help=field.metadata["help"],
            commands=field.metadata["commands"],
            word=field.metadata["word"] or field.name.replace("_", "-"),
            default_text=field.metadata["default_text"],
        )
        for field in dataclasses.fields(config_class)
    )
