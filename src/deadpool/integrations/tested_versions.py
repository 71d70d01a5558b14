"""Which versions of a library an integration was tested with. Others are refused: it enters the library's own loop, and
a loop that has changed could resume with wrong numbers."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

from deadpool.errors import ConfigError
from deadpool.notes import note
from deadpool.trainer import current


def require_tested(tested: Mapping[str, tuple[str, ...]], *, force: bool) -> None:
    """`tested`: by package, the versions by their first two numbers."""
    for package, known in tested.items():
        found = version(package)
        if not force and ".".join(found.split(".")[:2]) not in known:
            raise ConfigError(
                f"{package} {found} was never tested with this integration, which enters its training loop; use "
                f"{package} {', '.join(known)}, or force=True, and compare the losses with those of an unprotected run"
            )


def is_protected_job(tested: Mapping[str, tuple[str, ...]], *, force: bool) -> bool:
    """Whether DeadPool has started this script. If not, a note says so; if so, versions must be known ones."""
    if current.session is None:
        note("this script was not started by DeadPool, so it is not protected: start it with `deadpool run`")
        return False
    require_tested(tested, force=force)
    return True
