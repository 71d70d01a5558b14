"""Flags of commands for the settings of a job, generated from JobConfig: each setting is described only there."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from deadpool.config.job_config import settings_for
from deadpool.config.resolution import FIRST, SECTION_OF
from deadpool.config.values import AGENT, COORDINATOR, Setting

_TYPES: dict[str, Any] = {
    "int": int | None,
    "float": float | None,
    "str": str | None,
    "bool": bool | None,
    "tuple[str, ...]": list[str] | None,
}
_REQUIRED = {(COORDINATOR, "nodes")}
"""A coordinator that was not told how many nodes train would begin with the first that joins."""
_FIRST_PANEL = "Settings that matter first"
_HELP_ALL = "help_all"
_DEFAULT_TEXTS = {
    (AGENT, "host"): "the address of this machine that leads to the coordinator",
    (AGENT, "tls"): "DEADPOOL_TLS, else off; the same as at the coordinator",
}


def with_settings(command: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command a flag for each of its settings. It gets their values as `flags`, by setting; None: not given."""
    settings = _in_sections(settings_for(command))

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(**arguments: Any) -> None:
            arguments.pop(_HELP_ALL, None)
            flags = {each.name: _value(arguments.pop(each.name)) for each in settings}
            function(**arguments, flags=flags)

        signature = _signature(function, [*(_parameter(command, each) for each in settings), _help_all(len(settings))])
        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
        del run.__wrapped__  # type: ignore[attr-defined]
        return run

    return decorate


def _in_sections(settings: Iterable[Setting]) -> list[Setting]:
    """What matters first comes first, and the rest as the sections have it."""
    order = [*FIRST, *SECTION_OF]
    return sorted(settings, key=lambda each: order.index(each.name))


def _help_all(count: int) -> inspect.Parameter:
    option = typer.Option("--help-all", help=f"Show all {count} settings, and exit.", is_eager=True, callback=_show_all)
    return inspect.Parameter(
        _HELP_ALL, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[bool, option], default=False
    )


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        for parameter in context.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        typer.echo(context.get_help())
        raise typer.Exit


def _signature(function: Callable[..., None], generated: list[inspect.Parameter]) -> inspect.Signature:
    own = inspect.signature(function, eval_str=True).parameters.values()
    parameters = [*(each for each in own if each.name != "flags"), *generated]
    return inspect.Signature([each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters])


def _parameter(command: str, setting: Setting) -> inspect.Parameter:
    names = [setting.flag, f"--no-{setting.word}"] if setting.kind == "bool" else [setting.flag]
    is_required, is_first = (command, setting.name) in _REQUIRED, setting.name in FIRST
    section = SECTION_OF[setting.name]
    option = typer.Option(
        "/".join(names),
        help=_help(command, setting).replace("[", r"\["),  # else rich takes [racks] for a style
        hidden=not is_first and not is_required,
        rich_help_panel=_FIRST_PANEL if is_first else f"Settings: {section}",
    )
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[_TYPES[setting.kind], option],
        default=inspect.Parameter.empty if is_required else None,
    )


def _help(command: str, setting: Setting) -> str:
    if (command, setting.name) in _REQUIRED:
        return setting.help
    text = _DEFAULT_TEXTS.get((command, setting.name))
    return f"{setting.help} (default: {text})" if text else setting.help_text()


def _value(given: Any) -> Any:
    """A repeatable flag that was not given is an empty list; the settings hold tuples."""
    return (tuple(given) or None) if isinstance(given, list) else given
