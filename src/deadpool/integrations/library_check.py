"""Decides, before an integration changes anything, whether it can be used with the library that is installed.

    tested version, and all that is relied on is there     it goes on
    another version, and all of that is there              it goes on, with a note and the event `unknown_library`
    something is missing, or the version is known to fail  refused in a sentence; force=True makes a note of it

That a version was tested is not replaced by the look-up: not every difference shows in names and parameters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from deadpool.errors import ConfigError
from deadpool.host.notes import note
from deadpool.integrations.relied_on import Uses
from deadpool.trainer import current


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """`tested`: versions by their first two numbers. `known_to_fail`: by the first two numbers or the whole version,
    why."""

    package: str
    tested: tuple[str, ...]
    relies_on: tuple[Uses, ...]
    known_to_fail: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_tested(self) -> bool:
        return _first_two(version(self.package)) in self.tested

    def problem(self) -> str | None:
        """Why it cannot be used, in one sentence."""
        found = version(self.package)
        known = self.known_to_fail.get(found) or self.known_to_fail.get(_first_two(found))
        missing = [known] if known else [text for uses in self.relies_on for text in uses.missing()]
        if not missing:
            return None
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        return (
            f"{self.package} {found} cannot be used with this integration: {missing[0]}{more}; use {self.package} "
            f"{' or '.join(self.tested)}"
        )


def is_protected_job(libraries: Iterable[Library], *, force: bool) -> bool:
    """Whether DeadPool has started this script. If not, a note says so; if so, its library must be suitable."""
    if current.session is None:
        note("this script was not started by DeadPool, so it is not protected: start it with `deadpool run`")
        return False
    require_suitable(libraries, force=force)
    return True


def require_suitable(libraries: Iterable[Library], *, force: bool) -> None:
    for library in libraries:
        problem = library.problem()
        if problem is not None and not force:
            raise ConfigError(f"{problem}, or try it with force=True and compare losses with an unprotected run")
        if problem is not None:
            _tell(f"{problem}; force=True goes on in spite of it")
        elif not library.is_tested:
            _tell(
                f"DeadPool was never tested with {library.package} {version(library.package)} (tested: "
                f"{', '.join(library.tested)}); what it relies on is there. Compare the losses once with those of an "
                "unprotected run"
            )


def _tell(text: str) -> None:
    """Once per job: by the process in which rank 0 begins, not by rehearsals and by those that take its place."""
    session, group = current.session, current.default_group
    if session is not None and group is not None and group.is_live() and session.rank == 0:
        note(text)
        session.emit("unknown_library", reason=text)


@contextlib.contextmanager
def importing(libraries: Iterable[Library]) -> Iterator[None]:
    """Surrounds the import of an integration. If it fails because its library has changed, it says so in words."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        with contextlib.suppress(PackageNotFoundError):  # it is not installed, as the error says
            for problem in filter(None, (library.problem() for library in libraries)):
                raise ConfigError(problem) from error
        raise


def _first_two(found: str) -> str:
    return ".".join(found.split(".")[:2])
