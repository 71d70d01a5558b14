"""What an integration relies on in its library, and whether this version has it.

`Library` decides, before an integration changes anything, whether it can be used with the library that is installed.

    tested version, and all that is relied on is there     it goes on
    another version, and all of that is there              it goes on, with a note and the event `unknown_library`
    something is missing, or the version is known to fail  refused in a sentence; force=True makes a note of it

That a version was tested is not replaced by the look-up: not every difference shows in names and parameters.

`Uses`: the words in which an integration says what it relies on in its library, and how that is looked up.

An integration enters a library's own loop, and uses names that nobody has promised to keep. Its `relies_on.py` lists
them. Nothing is run or changed here: classes are inspected, and the code of their methods is read. So a name that is
gone, a parameter that is called otherwise, a new one that has to be given, and a method that the library does not
call any more are noticed. That a method does something else under the same name is not. Attributes that a library
sets by `setattr` or in a dictionary cannot be seen, and are left out of the lists.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import importlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from types import CodeType, FunctionType, ModuleType
from typing import Any

from deadpool.errors import ConfigError
from deadpool.host.notes import note
from deadpool.trainer import current

REST = "..."
_NOTHING = object()


@dataclass(frozen=True, slots=True)
class Uses:
    """What is used of one module ("package.module") or of one class ("package.module:Class").

    `has` are attributes: those of the class or module, and those that its code sets on instances. `calls` and
    `overrides` say with which parameters: "first, second, *, by_keyword". What is overridden has to be called by the
    library, and takes nothing else; what is called may take more, if it need not be given. With "..." at the end
    whatever else there is is passed on as it comes.
    """

    where: str
    has: tuple[str, ...] = ()
    calls: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.where.replace(":", ".")

    def missing(self) -> Iterator[str]:
        """A few words for each thing that is not as it should be."""
        try:
            owner = self._find()
        except AttributeError:
            yield f"there is no {self.name}"
            return
        except Exception as error:  # an import runs code of the library, which may fail in any way
            is_gone = isinstance(error, ImportError) and self.where.startswith(str(error.name))
            yield f"there is no {self.name}" if is_gone else f"{self.name} cannot be imported ({error})"
            return
        if not isinstance(owner, type | ModuleType):
            yield f"{self.name} is neither a class nor a module any more"
            return
        codes = tuple(_codes(owner))
        yield from (f"{self.name} has no {name}" for name in self.has if not _has(owner, name, codes))
        for name, parameters in self.calls.items():
            yield from (f"{self.name}.{name} {each}" for each in _of_method(owner, name, parameters))
        for name, parameters in self.overrides.items():
            yield from (f"{self.name}.{name} {each}" for each in _of_method(owner, name, parameters, is_override=True))
            if not any(name in code.co_names for code in codes):
                yield f"{self.name}.{name} is not called any more"

    def _find(self) -> Any:
        module, _, name = self.where.partition(":")
        found: Any = importlib.import_module(module)
        return functools.reduce(getattr, name.split("."), found) if name else found


def _has(owner: Any, name: str, codes: tuple[CodeType, ...]) -> bool:
    """Looked up without calling properties: one that is deprecated would warn."""
    is_there = inspect.getattr_static(owner, name, _NOTHING) is not _NOTHING
    declared = {**getattr(owner, "__dataclass_fields__", {}), **getattr(owner, "model_fields", {})}
    return is_there or name in declared or _is_set_in(codes, name)


def _of_method(owner: Any, name: str, parameters: str, *, is_override: bool = False) -> Iterator[str]:
    method = getattr(owner, name, None)
    if not callable(method):
        yield "is gone"
        return
    held = inspect.getattr_static(owner, name)
    try:
        found = list(inspect.signature(_undecorated(method, name)).parameters.values())
    except (TypeError, ValueError):
        return  # native code, whose parameters cannot be seen
    if found and found[0].kind is inspect.Parameter.VAR_POSITIONAL:
        return  # a decorator, and what it wraps cannot be seen
    has_self = isinstance(owner, type) and not isinstance(held, staticmethod | classmethod)
    yield from _of_parameters(found[1:] if has_self else found, parameters, is_override)


def _undecorated(method: Any, name: str) -> Any:
    """Some decorators do not say what they wrap, and take whatever is given."""
    takes_anything = isinstance(method, FunctionType) and not method.__code__.co_argcount
    wrapped = (each for each in _enclosed(method) if each.__name__ == name) if takes_anything else iter(())
    return next(wrapped, method)


def _of_parameters(found: list[inspect.Parameter], wanted: str, is_override: bool) -> Iterator[str]:
    names = [each.strip() for each in wanted.split(",") if each.strip()]
    takes_rest, names = REST in names, [each for each in names if each != REST]
    by_position = names[: names.index("*")] if "*" in names else names
    by_keyword = names[len(by_position) + 1 :]
    positional = [each.name for each in found if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    takes_more = any(each.kind is each.VAR_POSITIONAL for each in found)
    expected = by_position[: len(positional)] if takes_more else by_position
    if positional[: len(expected)] != expected:
        yield f"does not begin with ({', '.join(by_position)})"
    takes_any = any(each.kind is each.VAR_KEYWORD for each in found)
    known = {each.name for each in found if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)}
    yield from (f"has no parameter {name}" for name in by_keyword if not takes_any and name not in known)
    for each in [] if takes_rest else found:
        is_further = each.name not in names and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        if is_further and (is_override or each.default is each.empty):
            yield f"has a further parameter {each.name}"


# --- the code of classes and modules -------------------------------------------------------------------------------


def _codes(owner: Any) -> Iterator[CodeType]:
    """Yields the codes of all functions of a class and its bases, or of all functions and classes that a module
    defines.
    """
    if isinstance(owner, ModuleType):
        own = [each for each in vars(owner).values() if getattr(each, "__module__", None) == owner.__name__]
        kinds = [kind for each in own if isinstance(each, type) for kind in each.__mro__]
    else:
        own, kinds = [], owner.__mro__
    yield from _codes_of([*own, *(each for kind in kinds for each in vars(kind).values())])


def _codes_of(values: list[Any]) -> Iterator[CodeType]:
    """Yields the codes of values and of what decorators wrap, each function once: one that calls itself is in its own
    closure.
    """
    seen = set[int]()
    while values:
        value = values.pop()
        if isinstance(value, property):
            values += [value.fget, value.fset, value.fdel]
        elif isinstance(value, functools.cached_property):
            values.append(value.func)
        elif isinstance(value, staticmethod | classmethod):
            values.append(value.__func__)
        elif isinstance(value, FunctionType) and id(value) not in seen:
            seen.add(id(value))
            yield from _with_inner(value.__code__)
            values += _enclosed(value)


def _enclosed(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            if isinstance(cell.cell_contents, FunctionType):
                yield cell.cell_contents
        except ValueError:
            continue  # an empty cell


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _with_inner(each)


def _is_set_in(codes: tuple[CodeType, ...], name: str) -> bool:
    steps = (step for code in codes if name in code.co_names for step in dis.get_instructions(code))
    return any(step.opname == "STORE_ATTR" and step.argval == name for step in steps)


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
