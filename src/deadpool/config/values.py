"""Values of settings as they are written in flags, files and the environment, and how a setting is described.

A `Setting` is described once, where it is declared: its flag, its environment variable and its help follow from that.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deadpool.config.environment import variable_of
from deadpool.errors import ConfigError

_CODED = re.compile(r"rs\([^)]*\)")


def parse_cpus(text: str) -> frozenset[int]:
    """From numbers and ranges, e.g. "0-3,8"."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    found = [re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part) for part in parts]
    ends = [(int(each[1]), int(each[2] or each[1])) for each in found if each is not None]
    if len(ends) < len(parts) or any(last < first for first, last in ends):
        raise ConfigError(f"bulk_cpus={text!r} cannot be used: give numbers and ranges, as in 0-3,8")
    return frozenset(cpu for first, last in ends for cpu in range(first, last + 1))


def parse_period(text: str) -> tuple[float, int]:
    """Seconds and steps, one of which is 0: "30m", "90s", "2h", "200 steps"; "": neither."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "step": 0.0, "steps": 0.0}
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", text.lower())
    if not text.strip():
        return 0.0, 0
    if found is None or found[2] not in units or float(found[1]) <= 0:
        raise ConfigError(f"durable_every={text!r} cannot be used: give a time or steps, as in 30m, 90s or 200 steps")
    if units[found[2]]:
        return float(found[1]) * units[found[2]], 0
    return 0.0, max(1, int(float(found[1])))


def parse_bandwidth(text: str) -> float:
    """Bytes per second from "200MB" or "1.5GB"; "": no limit."""
    if not text.strip():
        return 0.0
    count = _count_bytes(text.upper().rstrip().removesuffix("/S"))
    if count <= 0:
        raise ConfigError(f"durable_bandwidth={text!r} cannot be used: give bytes per second, as in 200MB or 1.5GB")
    return count


def parse_bounds(text: str) -> dict[str, float]:
    """Reads bounds such as "copies=2,memory=0.5,every=8,rs(4,1)", each of which may be left out. `coded_bound` reads
    the scheme.
    """
    limits = {"copies": (1.0, 16.0), "memory": (0.01, 1.0), "every": (1.0, 64.0)}
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in _CODED.sub("", text).split(","))):
        name, _, number = part.partition("=")
        least, most = limits.get(name, (1.0, 0.0))
        if not re.fullmatch(r"\d+(\.\d+)?", number) or not least <= float(number) <= most:
            accepted = (
                "copies=2 (holders of a rank), memory=0.5 (share of a node), every=8 (steps), rs(4,1) (parity, where "
                "copies take more memory than that), separated by commas"
            )
            raise ConfigError(f"protect_at_most={text!r} cannot be used: give {accepted}")
        found[name] = float(number)
    return found


def coded_bound(text: str) -> str:
    """The coded scheme in the same text, as in "rs(4,1)"; "": there is none."""
    found = _CODED.findall(text)
    if len(found) > 1:
        raise ConfigError(f"protect_at_most={text!r} cannot be used: give one scheme rs(K,M)")
    return found[0] if found else ""


def parse_bytes(text: str, name: str) -> int:
    """Bytes from "5GB" or "500MB"."""
    count = int(_count_bytes(text))
    if count <= 0:
        raise ConfigError(f"{name}={text!r} cannot be used: give bytes, as in 500MB or 5GB")
    return count


def _count_bytes(text: str) -> float:
    """0: this is no number of bytes."""
    units = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?)B?\s*", text.upper())
    return float(found[1]) * units[found[2]] if found is not None else 0.0


def read_racks(path: Path, nodes: Sequence[str]) -> dict[str, str]:
    """Reads a file with a table [racks] that lists the nodes of each rack: r0 = ["n0", "n1"]."""
    racks = read_toml(path, "topology file").get("racks")
    if not isinstance(racks, dict) or not all(isinstance(names, list) for names in racks.values()):
        raise ConfigError(f'topology file {path} needs a table [racks] with lists of nodes, as in r0 = ["n0", "n1"]')
    found: dict[str, str] = {}
    for rack, names in racks.items():
        for name in names:
            if name not in nodes:
                raise ConfigError(f"{path}: rack {rack} names node {name!r}: known are {', '.join(nodes)}")
            if found.setdefault(name, rack) != rack:
                raise ConfigError(f"{path}: node {name} is in two racks, {found[name]} and {rack}")
    return found


def read_toml(path: Path, what: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # no text, or no TOML
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"{what} {path} cannot be read: {reason}. Give the path of a TOML file that this user can read"
        ) from error


def cast(kind: str, value: Any, given: str) -> Any:
    """`kind` is the annotation of a setting, `given` names it and its value in an error."""
    try:
        return _KINDS[kind](value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{given} cannot be used: give {_ACCEPTED[kind]}") from error


def _texts(value: Any) -> tuple[str, ...]:
    """A list in a file; in the environment one text, separated by semicolons."""
    parts = value.split(";") if isinstance(value, str) else value
    return tuple(str(part).strip() for part in parts if str(part).strip())


def _truth(value: Any) -> bool:
    """A truth value in a file; a word in the environment."""
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if str(value).lower() not in words:
        raise ValueError(value)
    return words[str(value).lower()]


_KINDS: dict[str, Callable[[Any], Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": _truth,
    "tuple[str, ...]": _texts,
}
_ACCEPTED = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "tuple[str, ...]": "a list of texts",
}


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
